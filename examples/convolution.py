"""Apply a bank of filters to a photo: convolution as im2col and one batched matrix product.

    python examples/convolution.py                   runs on every backend and writes convolution.png
    python examples/convolution.py --backend opencl --output filtered.png

im2col makes each pixel's 7 × 7 neighbourhood a row of a matrix. The product with the filters, one filter per row, then
applies every filter at every pixel. The three colours are the batch. The results must agree with SciPy's within gemm's
error bound. The photo, a cup of coffee, comes with scikit-image.

The times are those of the product without im2col. The first call also loads or compiles the kernel; the script prints
it apart from the median of the following calls.
"""

from __future__ import annotations

import argparse
import statistics
import time

import matplotlib as mpl
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from scipy import ndimage
from skimage import data

import gemm

SIZE = 7
WARM_CALLS = 7


def filters() -> dict[str, np.ndarray]:
    """The filters: SIZE × SIZE kernels by name."""
    y, x = np.mgrid[-(SIZE // 2) : SIZE // 2 + 1, -(SIZE // 2) : SIZE // 2 + 1].astype(float)
    gauss = np.exp(-(x**2 + y**2) / (2 * 1.5**2))
    gauss /= gauss.sum()
    one = (x == 0) & (y == 0)
    narrow = np.exp(-(x**2 + y**2) / 2)
    ripple = np.exp(-(x**2 + y**2) / 8) * np.cos(np.pi / 2 * (x + y) / np.sqrt(2))
    return {
        "blur": gauss,
        "sharpen": 2.5 * one - 1.5 * gauss,
        "edges across": x * narrow / np.abs(x * narrow).sum() * 4,
        "edges down": y * narrow / np.abs(y * narrow).sum() * 4,
        "Laplacian": 10 * (narrow / narrow.sum() - gauss),
        "relief": one + 2 * (x + y) * narrow / narrow.sum(),
        "motion": (x == y) / SIZE,
        "diagonal ripples": ripple - ripple.mean(),
    }


def im2col(image: np.ndarray) -> np.ndarray:
    """(colours, height * width, SIZE * SIZE) of the (height, width, colours) image: a row for each pixel."""
    margin = SIZE // 2
    padded = np.pad(image.transpose(2, 0, 1), ((0, 0), (margin, margin), (margin, margin)), mode="symmetric")
    windows = sliding_window_view(padded, (SIZE, SIZE), axis=(1, 2))
    height, width, colours = image.shape
    return windows.reshape(colours, height * width, SIZE * SIZE)


def convolve(columns: np.ndarray, bank: np.ndarray, backend: str) -> tuple[np.ndarray, list[float]]:
    """The (colours, filters, pixels) product of im2col's result and the bank, and the seconds of each call."""
    seconds = []
    for _ in range(1 + WARM_CALLS):
        start = time.perf_counter()
        product = gemm.gemm(bank.reshape(len(bank), -1), columns, trans_b=True, backend=backend)
        seconds.append(time.perf_counter() - start)
    return product, seconds


def expected(image: np.ndarray, bank: np.ndarray) -> np.ndarray:
    """SciPy's result in float64."""
    planes = [
        [ndimage.correlate(image[..., colour], kernel, mode="reflect", output=np.float64) for kernel in bank]
        for colour in range(image.shape[2])
    ]
    return np.array(planes)


def draw(image: np.ndarray, names: list[str], planes: np.ndarray, output: str) -> None:
    """Save the photo and the result of each filter."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(3, 3, figsize=(12, 8.8), layout="constrained")
    pictures = planes.transpose(1, 2, 3, 0)
    for axis, name, picture in zip(axes.flat, ["photo", *names], [image, *pictures], strict=True):
        flat = abs(picture.mean()) < 0.1  # for filters with zero mean, grey stands for zero
        axis.imshow(np.clip(picture + 0.5 if flat else picture, 0, 1))
        axis.set_title(name)
        axis.axis("off")
    figure.savefig(output, dpi=90)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", nargs="+", help="default: all that work here")
    parser.add_argument("--output", default="convolution.png", help="the picture's file")
    args = parser.parse_args()
    mpl.use("Agg")

    image = (data.coffee() / 255).astype(np.float32)
    bank = {name: kernel.astype(np.float32) for name, kernel in filters().items()}
    kernels = np.stack(list(bank.values()))
    names = args.backend or [name for name, why_not in gemm.backends().items() if not why_not]
    exact = expected(image, kernels)
    bound = (SIZE * SIZE + 2) * 2.0**-24 * expected(np.abs(image), np.abs(kernels))
    print(
        f"{image.shape[1]} × {image.shape[0]} pixels, {image.shape[2]} colours, {len(bank)} filters of {SIZE} × {SIZE}"
    )
    columns = im2col(image)
    for name in names:
        product, (first, *warm) = convolve(columns, kernels, name)
        planes = product.reshape(exact.shape)
        error = np.abs(planes - exact)
        times = f"{statistics.median(warm) * 1e3:.1f} ms (median of {WARM_CALLS}; first call {first * 1e3:.0f} ms)"
        print(f"{name:8} differs from SciPy by {error.max():.1e} at most, {times}")
        assert np.all(error <= bound), f"{name}: some pixel exceeds the error bound"
    draw(image, list(bank), planes, args.output)
    print(f"wrote {args.output}")


if __name__ == "__main__":
    main()
