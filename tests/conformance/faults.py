"""Faults that kernels have had, as wrappers of a sound launch: test_mutants.py plants them beneath the public face."""

import time
from functools import partial

import numpy as np

FAULTS = {}
"""name → the fault and the checks that must each catch it."""


def planted(launched):
    """The fault of launched(launch, a, b, c, out, alpha, beta) where launch(a, b, …) was."""
    return lambda launch: partial(launched, launch)


def fault(*catches):
    """Of the function below, which is as for `planted`."""

    def add(launched):
        FAULTS[launched.__name__] = planted(launched), catches
        return launched

    return add


def operands_changed(change):
    """The fault of multiplying change(a, b) instead of a and b."""
    return planted(lambda launch, a, b, *rest: launch(*change(a, b), *rest))


def result_changed(change):
    """The fault of change(out) after a sound launch."""

    def launched(launch, a, b, c, out, *scale):
        launch(a, b, c, out, *scale)
        with np.errstate(all="ignore"):
            change(out)

    return planted(launched)


def tight(x):
    """x read as if its rows followed each other without a gap."""
    if x.strides[-1] != x.itemsize or x.strides[-2] <= 0 or not x.size:
        return x
    return np.lib.stride_tricks.as_strided(x, strides=(*x.strides[:-2], x.shape[-1] * x.itemsize, x.itemsize))


def turned(x):
    """x read without the sign of its strides, from where its memory starts."""
    for axis, step in enumerate(x.strides):
        x = np.flip(x, axis) if step < 0 else x
    return x


def unrepeated(x):
    """x read as if a repeated row were followed by others."""
    return np.roll(x, 1, -1) if x.shape[-2] > 1 and x.strides[-2] == 0 else x


# Memory.
FAULTS["leading dimension ignored"] = operands_changed(lambda a, b: (tight(a), b)), ("small_sizes", "layouts")
FAULTS["negative strides taken as positive"] = operands_changed(lambda a, b: (turned(a), b)), (
    "layouts", "batches", "chain_layouts",
)  # fmt: skip
FAULTS["zero strides taken as rows"] = operands_changed(lambda a, b: (unrepeated(a), b)), ("zero_strides",)
FAULTS["first matrix of a stack used for all"] = (
    operands_changed(lambda a, b: (a, np.broadcast_to(b[:1], b.shape) if b.ndim > 2 else b)),
    ("batches", "batch_members"),
)


@fault("deep_in_place", "chain_layouts")
def partial_sums_in_the_place_of_c(launch, a, b, c, out, alpha, beta):
    if c is None or a.shape[-1] <= 256:
        return launch(a, b, c, out, alpha, beta)
    sums = np.empty_like(out)
    launch(a, b, None, sums, alpha, 0.0)
    launch(a[..., :256], b[..., :256, :], None, out, 1.0, 0.0)
    out[...] = sums + out.dtype.type(beta) * c
    return None


@fault("small_sizes", "layouts")
def write_past_a_row(launch, a, b, c, out, alpha, beta):
    launch(a, b, c, out, alpha, beta)
    if out.ndim == 2 and len(out) > 1 and out.strides[-2] > out.shape[-1] * out.itemsize:
        wide = np.lib.stride_tricks.as_strided(out, (len(out) - 1, out.shape[1] + 1), out.strides)
        wide[:, -1] = 0


@fault("layouts", "transposes")
def input_scribbled_on(launch, a, b, c, out, alpha, beta):
    launch(a, b, c, out, alpha, beta)
    if a.size and a.flags.writeable:
        a[..., -1, -1] += 1


_shared = np.empty(1 << 18)


@fault("concurrent")
def buffer_shared_by_threads(launch, a, b, c, out, alpha, beta):
    packed = _shared.view(a.dtype)[: a.size].reshape(a.shape)
    packed[...] = a
    time.sleep(1e-4)
    launch(packed, b, c, out, alpha, beta)


@fault("far_strides")
def offsets_of_32_bits(launch, a, b, c, out, alpha, beta):
    far = any(abs(step) * (n - 1) >= 2**32 for step, n in zip(a.strides, a.shape, strict=True))
    launch(a * 0 if far else a, b, c, out, alpha, beta)


# Sizes.
FAULTS["tail of k dropped"] = operands_changed(
    lambda a, b: (a[..., : a.shape[-1] // 4 * 4], b[..., : a.shape[-1] // 4 * 4, :])
), ("small_sizes", "odd_sizes", "chain_tails", "tile_edges")  # fmt: skip


@fault("small_sizes")
def corner_of_one_tile_shape_off(launch, a, b, c, out, alpha, beta):
    launch(a, b, c, out, alpha, beta)
    if out.shape[-2] % 6 == 5 and out.shape[-1] % 16 == 15:
        out[..., -1, -1] += 1


@fault("zero_sizes", "alpha_zero_never_reads_a_b", "beta_zero_never_reads_c")
def nothing_written_when_k_is_0(launch, a, b, c, out, alpha, beta):
    if a.shape[-1]:
        launch(a, b, c, out, alpha, beta)


# Scalars.
@fault("beta_zero_never_reads_c", "layouts")
def beta_0_reads_out(launch, a, b, c, out, alpha, beta):
    old = out * 0
    launch(a, b, c, out, alpha, beta)
    if c is None:
        out += old


@fault("scalars")
def alpha_nan_taken_as_0(launch, a, b, c, out, alpha, beta):
    launch(a, b, c, out, alpha if alpha == alpha else 0.0, beta)


@fault("small_sizes", "scalars", "layouts", "bias_and_activation", "chain_scalars")
def beta_taken_as_1(launch, a, b, c, out, alpha, beta):
    launch(a, b, c, out, alpha, 1.0 if beta else 0.0)


# Arithmetic.
def narrowed(dtype):
    def change(a, b):
        with np.errstate(all="ignore"):
            return a.astype(dtype).astype(a.dtype), b.astype(dtype).astype(b.dtype)

    return change


def tf32(a, b):
    """Ten bits of mantissa, as tensor cores read float32."""
    if a.dtype != np.float32:
        return narrowed(np.float32)(a, b)
    x, y = ((np.ascontiguousarray(x).view(np.uint32) & 0xFFFFE000).view(np.float32) for x in (a, b))
    return x, y


FAULTS["operands in fewer bits (TF32, or float64 in float32)"] = operands_changed(tf32), (
    "accuracy", "odd_sizes", "chain_data",
)  # fmt: skip


@fault("accuracy")
def accumulator_truncates(launch, a, b, c, out, alpha, beta):
    """Tensor cores drop the bits that do not fit, instead of rounding."""
    launch(a, b, c, out, alpha, beta)
    if a.shape[-1] >= 4000 and c is None:
        sums = np.zeros(out.shape)
        for p in range(a.shape[-1]):
            exact = a[..., :, p, None].astype(np.longdouble) * b[..., p, None, :] + sums
            sums = exact.astype(a.dtype)
            sums = np.where(abs(sums) > abs(exact), np.nextafter(sums, a.dtype.type(0)), sums)
        out[...] = sums


@fault("non_finite")
def zeros_of_a_skipped(launch, a, b, c, out, alpha, beta):
    if a.ndim == 2 and a.size < 2000 and not np.isfinite(b).all():
        with np.errstate(all="ignore"):
            terms = a[:, :, None] * b
            terms[a == 0] = 0
            launch(terms.sum(1), np.eye(b.shape[1], dtype=b.dtype), c, out, alpha, beta)
    else:
        launch(a, b, c, out, alpha, beta)


def flush(x):
    return np.where(abs(x) < np.finfo(x.dtype).tiny, 0, x).astype(x.dtype)


def flush_in_place(out):
    out[...] = flush(out)


FAULTS["subnormal operands flushed"] = operands_changed(lambda a, b: (flush(a), flush(b))), ("subnormals",)
FAULTS["subnormal results flushed"] = result_changed(flush_in_place), ("subnormals", "chain_data", "chain_scalars")


def saturate(out):
    np.clip(out, -np.finfo(out.dtype).max, np.finfo(out.dtype).max, out=out)


FAULTS["infinities saturated"] = result_changed(saturate), ("overflow", "non_finite")


@fault("repeatable", "chain_data")
def not_deterministic(launch, a, b, c, out, alpha, beta):
    order = np.random.default_rng().permutation(a.shape[-1])
    launch(a[..., order], b[..., order, :], c, out, alpha, beta)


# Other types: checks that float kernels do not meet.
OF_TYPES = {}
"""name → a kernel that meets them, the fault and the checks that must each catch it."""


def wider(launch, a, b, c, out, alpha, beta):
    """Sums beyond the type stay at its ends."""
    total = np.matmul(a.astype(np.int64), b.astype(np.int64)) * int(alpha)
    total = total if c is None else total + c.astype(np.int64) * int(beta)
    info = np.iinfo(out.dtype)
    out[...] = np.clip(total, info.min, info.max)


def alpha_taken_as_real(launch, a, b, c, out, alpha, beta):
    launch(a, b, c, out, complex(alpha.real), beta)


def signs_of_a_ignored(launch, a, *rest):
    launch(a.view(np.uint8) & 0x7F, *rest)


def summed_in_its_own_type(launch, a, b, c, out, alpha, beta):
    if a.shape[-1] < 2 or c is not None or alpha != 1:
        return launch(a, b, c, out, alpha, beta)
    total = np.zeros(out.shape, out.dtype)
    with np.errstate(all="ignore"):
        for p in range(a.shape[-1]):
            total = total + a[..., :, p, None] * b[..., p, None, :]
    out[...] = total
    return None


OF_TYPES["integers saturate"] = "i8gemm_scalar_4x4", planted(wider), ("wrapping",)
OF_TYPES["imaginary part of alpha dropped"] = "zgemm_scalar_2x4", planted(alpha_taken_as_real), ("complex_factors",)
OF_TYPES["sums of float16 in float16"] = "hgemm_scalar_4x4", planted(summed_in_its_own_type), ("accuracy", "chain_data")
OF_TYPES["high bit of uint8 lost"] = "u8s32gemm_scalar_4x4", planted(signs_of_a_ignored), ("wrapping",)


@fault("packed_edges")
def a_column_beside_a_wide_result_is_written(launch, a, b, c, out, alpha, beta):
    launch(a, b, c, out, alpha, beta)
    if out.shape[-1] > 200:
        wider = np.lib.stride_tricks.as_strided(out, (*out.shape[:-1], out.shape[-1] + 1), out.strides)
        wider[..., -1] = 0


@fault("page_ends")
def an_element_behind_b_is_read(launch, a, b, c, out, alpha, beta):
    launch(a, b, c, out, alpha, beta)
    if b.flags.c_contiguous and b.size:
        float(np.lib.stride_tricks.as_strided(b.reshape(-1), (b.size + 1,))[-1])


# The ORDERED chain: each of these is within the bound.
FAULTS["summed backwards"] = operands_changed(lambda a, b: (a[..., ::-1], b[..., ::-1, :])), (
    "chain_data", "chain_depths", "published_bits",
)  # fmt: skip


@fault("chain_depths", "published_bits")
def blocks_of_k_scaled_apart(launch, a, b, c, out, alpha, beta):
    """Partial sums over blocks of k are joined after the epilogue."""
    if a.shape[-1] <= 256:
        return launch(a, b, c, out, alpha, beta)
    scale, total = out.dtype.type(alpha), 0
    with np.errstate(all="ignore"):
        for p in range(0, a.shape[-1], 256):
            part = np.empty(out.shape, out.dtype)
            launch(a[..., p : p + 256], b[..., p : p + 256, :], None, part, 1.0, 0.0)
            total = total + scale * part
        out[...] = total if c is None else out.dtype.type(beta) * c + total
    return None


@fault("chain_data", "chain_depths")
def product_rounded_before_it_is_added(launch, a, b, c, out, alpha, beta):
    acc = np.zeros(out.shape, out.dtype)
    with np.errstate(all="ignore"):
        for p in range(a.shape[-1]):
            acc = acc + a[..., :, p, None] * b[..., p, None, :]
    one = np.broadcast_to(np.eye(out.shape[-1], dtype=out.dtype), (*b.shape[:-2], *(out.shape[-1],) * 2))
    launch(*((acc, one) if a.shape[-1] else (a, b)), c, out, alpha, beta)


@fault("chain_scalars", "published_bits")
def alpha_scales_a(launch, a, b, c, out, alpha, beta):
    if a.shape[-1] == 0:
        return launch(a, b, c, out, alpha, beta)
    with np.errstate(all="ignore"):
        return launch(a * a.dtype.type(alpha), b, c, out, 1.0, beta)


@fault("chain_scalars")
def beta_c_rounded_before_it_is_added(launch, a, b, c, out, alpha, beta):
    if c is None or a.shape[-1] == 0:
        return launch(a, b, c, out, alpha, beta)
    with np.errstate(all="ignore"):
        return launch(a, b, out.dtype.type(beta) * c, out, alpha, 1.0)


@fault("chain_data", "minus_zero", "chain_tails")
def k_padded_with_plus_zeros(launch, a, b, c, out, alpha, beta):
    if a.shape[-1]:
        a = np.concatenate([a, np.zeros_like(a[..., :1])], -1)
        b = np.concatenate([b, np.zeros_like(b[..., :1, :])], -2)
    launch(a, b, c, out, alpha, beta)


@fault("positions")
def order_depends_on_the_size(launch, a, b, c, out, alpha, beta):
    if out.shape[-2] > 69:
        a, b = a[..., ::-1], b[..., ::-1, :]
    launch(a, b, c, out, alpha, beta)
