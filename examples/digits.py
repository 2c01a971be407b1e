"""Train a small neural network on handwritten digits; gemm computes every matrix product, forward and backward.

    python examples/digits.py                        on every backend of this machine
    python examples/digits.py --backend cpu opencl

The 1797 digits come with scikit-learn. Stochastic gradient descent with momentum trains the network, 64 → 64 → 10 with
ReLU and softmax, on each backend in turn. With reproducible=True the trained weights have the same bits on all
backends, which their hashes show. NumPy does not offer reproducible results; there, only the accuracy must be as good.
The first epoch also loads or compiles the kernels; the script prints its time apart from the median of the others.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import time
from dataclasses import dataclass

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import gemm

HIDDEN, BATCH, RATE, MOMENTUM = 64, 64, 0.2, 0.9


@dataclass
class Layer:
    """The layer y = x·w + b. dw and db are the velocities of w and b, for gradient descent with momentum."""

    w: np.ndarray
    b: np.ndarray
    dw: np.ndarray
    db: np.ndarray

    @classmethod
    def random(cls, inputs: int, outputs: int, random: np.random.Generator) -> Layer:
        w = random.standard_normal((inputs, outputs)) * np.sqrt(2 / inputs)
        return cls(*(np.asarray(x, np.float32) for x in (w, np.zeros((1, outputs)), 0 * w, np.zeros((1, outputs)))))

    def forward(self, x: np.ndarray, how: dict) -> np.ndarray:
        return gemm.gemm(x, self.w, self.b, beta=1, **how)  # the row b broadcasts over the batch

    def backward(self, x: np.ndarray, dy: np.ndarray, how: dict) -> np.ndarray:
        """Take a step against the gradient. dy is the gradient of the loss by y; returns the gradient by x."""
        dx = gemm.gemm(dy, self.w, trans_b=True, **how)
        step = {"alpha": -RATE / len(x), "beta": MOMENTUM, **how}
        gemm.gemm(x, dy, self.dw, trans_a=True, out=self.dw, **step)  # dw = momentum·dw − rate/n·xᵀ·dy
        gemm.gemm(np.ones((1, len(x)), np.float32), dy, self.db, out=self.db, **step)
        self.w += self.dw
        self.b += self.db
        return dx


def train(x: np.ndarray, labels: np.ndarray, epochs: int, how: dict) -> tuple[list[Layer], list[float]]:
    """Train two layers on the rows of x with their labels. Returns the layers and the seconds of each epoch."""
    random = np.random.default_rng(0)
    layers = [Layer.random(x.shape[1], HIDDEN, random), Layer.random(HIDDEN, 10, random)]
    targets = np.eye(10, dtype=np.float32)[labels]
    seconds = []
    for _ in range(epochs):
        began = time.perf_counter()
        order = random.permutation(len(x))
        for start in range(0, len(x), BATCH):
            rows = order[start : start + BATCH]
            hidden = np.maximum(layers[0].forward(x[rows], how), 0)
            scores = layers[1].forward(hidden, how)
            odds = np.exp(scores - scores.max(axis=1, keepdims=True))
            error = odds / odds.sum(axis=1, keepdims=True) - targets[rows]
            back = layers[1].backward(hidden, error, how)
            layers[0].backward(x[rows], back * (hidden > 0), how)
        seconds.append(time.perf_counter() - began)
    return layers, seconds


def accuracy(layers: list[Layer], x: np.ndarray, labels: np.ndarray, how: dict) -> float:
    hidden = np.maximum(layers[0].forward(x, how), 0)
    return float(np.mean(layers[1].forward(hidden, how).argmax(axis=1) == labels))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", nargs="+", help="default: all that work here")
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()

    images, labels = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(
        (images / 16).astype(np.float32), labels, test_size=0.25, random_state=0, stratify=labels
    )
    names = args.backend or [name for name, why_not in gemm.backends().items() if not why_not]
    print(f"{len(x)} digits to learn from, {len(x_test)} to test, {args.epochs} epochs")
    scores, hashes = {}, {}
    for name in names:
        how = {"backend": name, "reproducible": name != "numpy"}
        layers, (first, *warm) = train(x, y, args.epochs, how)
        scores[name] = accuracy(layers, x_test, y_test, how)
        bits = hashlib.sha256(b"".join(part.tobytes() for layer in layers for part in (layer.w, layer.b))).hexdigest()
        if how["reproducible"]:
            hashes[name] = bits
        epoch = f"{statistics.median(warm or [first]) * 1e3:.1f} ms an epoch (the first: {first * 1e3:.0f} ms)"
        print(f"{name:8} {scores[name]:7.2%} right, weights {bits[:16]}, {epoch}")
    assert min(scores.values()) >= 0.96, "the network must read at least 96 % of the digits"
    assert len(set(hashes.values())) <= 1, "reproducible training must give the same bits on every backend"
    assert max(scores.values()) - min(scores.values()) <= 0.01, "backends must not differ in what they learn"
    if len(hashes) > 1:
        print(f"The weights of {', '.join(hashes)} have the same bits.")


if __name__ == "__main__":
    main()
