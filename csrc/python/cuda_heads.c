/* Where many device arrays lie, if each is like the first of its column: for gemm.gemm_many.
 *
 * PyTorch tells by functions of C, some nanoseconds each, that its library exports: those of its stable ABI, and the one
 * of ATen that says whether the elements are negated lazily, for which nothing else tells as quickly. They take the
 * address of an at::Tensor, which each Python tensor has at one place; it is looked for once, and taken only where what
 * they say then is what DLPack's exchange says. None of them needs the GIL: while the caller holds it and nobody
 * changes a tensor, the engine's threads read. Whether complex numbers are conjugated lazily they do not tell; no row
 * that takes products apart (Kernel.apart) takes those.
 *
 * Arrays of other libraries tell by attributes, one after another.
 */
#include "cuda.h"
#include "order.h"

enum { RUN = 64, MOST_AXES = 3, MOST_FACTS = 8 }; /* products a job; axes of arrays whose heads are read */
static const double HEAD_NS = 15;                 /* a tensor's */

typedef struct {
    int (*data)(void *, void **);
    int (*shape)(void *, int64_t **);
    int (*strides)(void *, int64_t **);
    int (*axes)(void *, int64_t *);
    int (*type)(void *, int32_t *);
    int (*place)(void *, int32_t *);
    int (*device)(void *, int32_t *);
    int (*layout)(void *, int32_t *);
    _Bool (*negated)(void *);
} functions;

typedef struct {
    int32_t type, place, device, layout;
    int64_t axes, *shape, *strides; /* the tensor's own */
} head;

/* What a tensor is but its address; 0: it is no plain one. Layouts without strides are told apart before these. */
static int read_head(const functions *tell, void *tensor, head *x, const head *like) {
    if (tell->type(tensor, &x->type) || tell->place(tensor, &x->place) || tell->device(tensor, &x->device) ||
        tell->layout(tensor, &x->layout) || tell->axes(tensor, &x->axes) || x->axes < 1 || x->axes > MOST_AXES)
        return 0;
    if (like && (x->type != like->type || x->place != like->place || x->device != like->device ||
                 x->layout != like->layout || x->axes != like->axes))
        return 0;
    return !tell->negated(tensor) && !tell->shape(tensor, &x->shape) && !tell->strides(tensor, &x->strides);
}

typedef struct {
    PyTypeObject *kind;
    Py_ssize_t at; /* of the at::Tensor in a tensor of that class */
    functions tell;
    PyObject *columns[OUT + 1]; /* None: not to be read */
    int in_place;               /* c is out, product by product */
    head first[OUT + 1];
    gemm_place *places;
    int64_t from, count, odd; /* odd: no product before it, that was read, is another; lowered by all threads */
} reading;

static void *tensor_in(const reading *all, PyObject *array) {
    return Py_TYPE(array) == all->kind ? (char *)array + all->at : NULL;
}

static int read_address(const reading *all, PyObject *array, int operand, void **address) {
    void *tensor = tensor_in(all, array);
    const head *first = &all->first[operand];
    head x;
    if (!tensor || !read_head(&all->tell, tensor, &x, first)) return 0;
    for (int64_t axis = 0; axis < x.axes; axis++)
        if (x.shape[axis] != first->shape[axis] || x.strides[axis] != first->strides[axis]) return 0;
    return !all->tell.data(tensor, address);
}

/* Where a place has an operand's address. */
static void **field(gemm_place *place, int operand) {
    return operand == A   ? (void **)&place->a
           : operand == B ? (void **)&place->b
           : operand == C ? (void **)&place->c
                          : &place->out;
}

static void fetch(const char *what, int lines) {
#ifdef __GNUC__
    for (int line = 0; line < lines; line++) __builtin_prefetch(what + 64 * line);
#else
    (void)what, (void)lines;
#endif
}

/* What a tensor's first word points to, and that's third word, which is its storage mostly: for `fetch`, to which any
 * address will do. */
static const char *body_of(const reading *all, PyObject *array) {
    const char *tensor = tensor_in(all, array);
    return tensor ? *(const char *const *)tensor : NULL;
}

static const char *storage_of(const reading *all, PyObject *array) {
    const char *body = body_of(all, array);
    return body ? ((const char *const *)body)[2] : NULL;
}

/* Brings the heads of the products from `start` to `stop`, one after another, then what they point to, then what that
 * does: each would be waited for otherwise. */
static void fetch_heads(const reading *all, int64_t start, int64_t stop, PyObject *(*arrays)[RUN]) {
    enum { LINES = 4 }; /* of a tensor that are read */
    for (int operand = 0; operand <= OUT; operand++) {
        if (all->columns[operand] == Py_None) continue;
        for (int64_t i = start; i < stop; i++)
            fetch((const char *)(arrays[operand][i - start] = gemm_column_item(all->columns[operand], all->from + i)),
                  1);
    }
    for (int operand = 0; operand <= OUT; operand++) {
        if (!gemm_column_lists(all->columns[operand])) continue;
        for (int64_t i = start; i < stop; i++) fetch(body_of(all, arrays[operand][i - start]), LINES);
    }
    for (int operand = 0; operand <= OUT; operand++) {
        if (!gemm_column_lists(all->columns[operand])) continue;
        for (int64_t i = start; i < stop; i++) fetch(storage_of(all, arrays[operand][i - start]), 1);
    }
}

static void read_some(void *context, int64_t job, int slot) {
    reading *all = (reading *)context;
    const int64_t start = job * RUN, stop = start + RUN < all->count ? start + RUN : all->count;
    PyObject *arrays[OUT + 1][RUN];
    (void)slot;
    if (gemm_least(&all->odd) <= start) return;
    fetch_heads(all, start, stop, arrays);
    const int both = all->columns[C] != Py_None && all->columns[OUT] != Py_None;
    for (int64_t i = start; i < stop; i++) {
        int alike = !both || (arrays[C][i - start] == arrays[OUT][i - start]) == all->in_place;
        for (int operand = 0; operand <= OUT && alike; operand++) {
            if (all->columns[operand] == Py_None) continue;
            PyObject *const *array = &arrays[operand][i - start];
            if (i > start && array[0] == array[-1])
                *field(&all->places[i], operand) = *field(&all->places[i - 1], operand);
            else
                alike = read_address(all, *array, operand, field(&all->places[i], operand));
        }
        if (alike) continue;
        gemm_lower(&all->odd, i);
        return;
    }
}

static void in_turn(gemm_work *work, void *context, int64_t count, double ns, double more_ns) {
    (void)ns, (void)more_ns;
    for (int64_t i = 0; i < count; i++) work(context, i, 0);
}

static share_function *share_at(unsigned long long address) {
    share_function *share = in_turn;
    if (address) memcpy(&share, &address, sizeof share);
    return share;
}

/* (count, the bits that any of the addresses of a, b, c and out has) of what was read. */
static PyObject *found(gemm_place *places, int64_t count, PyObject *const *columns) {
    unsigned long long bits[OUT + 1] = {0};
    for (int64_t i = 0; i < count; i++)
        for (int operand = 0; operand <= OUT; operand++)
            if (columns[operand] != Py_None) bits[operand] |= (uintptr_t)*field(&places[i], operand);
    return Py_BuildValue("L(KKKK)", (long long)count, bits[A], bits[B], bits[C], bits[OUT]);
}

/* Whether the columns have products `start` to `start + count`; else an error is set. */
static int long_enough(PyObject *const *columns, Py_ssize_t start, Py_ssize_t count) {
    for (int operand = 0; operand <= OUT; operand++) {
        const Py_ssize_t length = PyList_Check(columns[operand])    ? PyList_Size(columns[operand])
                                  : PyTuple_Check(columns[operand]) ? PyTuple_Size(columns[operand])
                                                                    : PY_SSIZE_T_MAX;
        if (start >= 0 && count > 0 && count <= MOST_ALIKE && start <= length - count) continue;
        PyErr_Format(PyExc_IndexError, "a column of %zd has no %zd products from %zd on", length, count, start);
        return 0;
    }
    return 1;
}

PyDoc_STRVAR(read_tensors_doc,
             "read_tensors(kind, at, functions, columns, start, count, places, share, /)\n--\n\n"
             "(how many products from number `start` on, at most `count`, have operands like the first; the bits of "
             "their addresses).\n\n"
             "functions: addresses, packed, as `handle_at` was given them, and `at` what it returned for the class "
             "`kind`. columns: of a, b, c and out, each a list or tuple of arrays, one for all, or None. Their "
             "addresses go to `places`, a struct gemm_place a product. share: where gemm_share is; 0: no threads.");

static PyObject *read_tensors(PyObject *module, PyObject *arguments) {
    reading all;
    PyObject **columns = all.columns;
    const char *packed;
    Py_ssize_t size, start, count;
    unsigned long long places, share;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!ny#(OOOO)nnKK:read_tensors", &PyType_Type, &all.kind, &all.at, &packed, &size,
                          &columns[A], &columns[B], &columns[C], &columns[OUT], &start, &count, &places, &share))
        return NULL;
    if (size != sizeof all.tell) return PyErr_Format(PyExc_ValueError, "functions have %zd bytes", size);
    if (!long_enough(columns, start, count)) return NULL;
    memcpy(&all.tell, packed, sizeof all.tell);
    all.places = (gemm_place *)(uintptr_t)places, all.from = start, all.count = all.odd = count;
    all.in_place =
        columns[C] != Py_None && gemm_column_item(columns[C], start) == gemm_column_item(columns[OUT], start);
    int listed = 0;
    for (int operand = 0; operand <= OUT; operand++) {
        if (columns[operand] == Py_None) continue;
        void *tensor = tensor_in(&all, gemm_column_item(columns[operand], start));
        if (!tensor || !read_head(&all.tell, tensor, &all.first[operand], NULL)) return found(NULL, 0, columns);
        listed += gemm_column_lists(columns[operand]);
    }
    share_at(share)(read_some, &all, (count + RUN - 1) / RUN, HEAD_NS * (double)count * listed, 0);
    return found(all.places, all.odd, columns);
}

/* Whether `tensor`, the address of an at::Tensor, is the one that DLPack tells `x` of. */
static int same(const functions *tell, void *tensor, const dl_tensor *x) {
    head found;
    void *data;
    if (!read_head(tell, tensor, &found, NULL) || tell->data(tensor, &data)) return 0;
    int good = found.axes == x->axes && data == (char *)x->data + x->offset;
    for (int64_t axis = 0; axis < found.axes && good; axis++)
        good = found.shape[axis] == x->shape[axis] && found.strides[axis] == x->strides[axis];
    return good;
}

PyDoc_STRVAR(handle_at_doc,
             "handle_at(exchange, functions, tensors, negated, /)\n--\n\n"
             "Where a tensor has its at::Tensor, in bytes, by some `tensors` of one class; `negated`, another one, is "
             "lazily negated. ValueError: they do not tell.");

static PyObject *handle_at(PyObject *module, PyObject *arguments) {
    enum { WITHIN = 4096 }; /* bytes of what an at::Tensor points to, among them its shape */
    PyObject *capsule, *tensors, *negated;
    const char *packed;
    Py_ssize_t size;
    functions tell;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "Oy#O!O:handle_at", &capsule, &packed, &size, &PyTuple_Type, &tensors, &negated))
        return NULL;
    const exchange *api = gemm_exchange(capsule);
    if (!api) return NULL;
    if (size != sizeof tell) return PyErr_Format(PyExc_ValueError, "functions have %zd bytes", size);
    memcpy(&tell, packed, sizeof tell);
    const Py_ssize_t count = PyTuple_Size(tensors);
    PyObject *basic = count ? PyObject_GetAttrString((PyObject *)Py_TYPE(negated), "__basicsize__") : NULL;
    const Py_ssize_t end = basic ? PyLong_AsSsize_t(basic) : 0;
    Py_XDECREF(basic);
    if (PyErr_Occurred()) return NULL;
    for (Py_ssize_t at = sizeof(PyObject); at + (Py_ssize_t)sizeof(void *) <= end; at += sizeof(void *)) {
        int good = 1;
        for (int checked = 0; checked < 2 && good; checked++) { /* nothing is called before all words are plausible */
            for (Py_ssize_t i = 0; i <= count && good; i++) {
                PyObject *array = i < count ? PyTuple_GetItem(tensors, i) : negated;
                dl_tensor x;
                if (Py_TYPE(array) != Py_TYPE(negated) || api->read(array, &x)) {
                    if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "tensors must be of one class");
                    return NULL;
                }
                char *word;
                memcpy(&word, (char *)array + at, sizeof word);
                good = (uintptr_t)x.shape - (uintptr_t)word < WITHIN;
                if (checked && good)
                    good = i < count ? same(&tell, (char *)array + at, &x) : tell.negated((char *)array + at);
            }
        }
        if (good) return PyLong_FromSsize_t(at);
    }
    return PyErr_Format(PyExc_ValueError, "these tensors do not tell where they have their at::Tensor");
}

/* An attribute's attribute's ... value; a new reference. */
static PyObject *follow(PyObject *array, PyObject *path) {
    PyObject *value = array;
    Py_INCREF(value);
    for (Py_ssize_t i = 0; value && i < PyTuple_Size(path); i++) {
        PyObject *next = PyObject_GetAttr(value, PyTuple_GetItem(path, i));
        Py_DECREF(value);
        value = next;
    }
    return value;
}

/* What an array is but its address, as new references, of which none is given where 0 is returned; with `like` only
 * whether it is the same. */
static int read_facts(PyObject *array, PyObject *facts, PyObject **values, PyObject *const *like) {
    const Py_ssize_t count = PyTuple_Size(facts);
    Py_ssize_t i = 0;
    for (; i < count; i++) {
        PyObject *value = follow(array, PyTuple_GetItem(facts, i));
        if (!value) break;
        if (!like) {
            values[i] = value;
            continue;
        }
        const int equal = value == like[i] ? 1 : PyObject_RichCompareBool(value, like[i], Py_EQ);
        Py_DECREF(value);
        if (equal != 1) break;
    }
    if (i == count) return 1;
    PyErr_Clear(); /* of an array that is none: the long way tells what it is */
    while (!like && i > 0) Py_DECREF(values[--i]);
    return 0;
}

/* Whether product `i` has its c as the first one has. */
static int same_role(PyObject *const *columns, int64_t i, int in_place) {
    if (columns[C] == Py_None || columns[OUT] == Py_None) return 1;
    return (gemm_column_item(columns[C], i) == gemm_column_item(columns[OUT], i)) == in_place;
}

PyDoc_STRVAR(read_arrays_doc,
             "read_arrays(facts, address, columns, start, count, places, /)\n--\n\n"
             "As read_tensors, for arrays of any one class. facts: tuples of names, each an attribute, or an "
             "attribute's attribute, that must equal the first array's. address: such a tuple, too.");

static PyObject *read_arrays(PyObject *module, PyObject *arguments) {
    PyObject *facts, *address, *columns[OUT + 1], *first[OUT + 1][MOST_FACTS], *before[OUT + 1] = {NULL};
    Py_ssize_t start, count;
    unsigned long long at;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!O!(OOOO)nnK:read_arrays", &PyTuple_Type, &facts, &PyTuple_Type, &address,
                          &columns[A], &columns[B], &columns[C], &columns[OUT], &start, &count, &at))
        return NULL;
    const Py_ssize_t many = PyTuple_Size(facts);
    if (many > MOST_FACTS) return PyErr_Format(PyExc_ValueError, "%zd facts are too many", many);
    if (!long_enough(columns, start, count)) return NULL;
    gemm_place *places = (gemm_place *)(uintptr_t)at;
    const int in_place =
        columns[C] != Py_None && gemm_column_item(columns[C], start) == gemm_column_item(columns[OUT], start);
    PyTypeObject *kind = NULL;
    int known = 0, good = 1; /* operands whose first array is */
    for (; good && known <= OUT; known += good) {
        if (columns[known] == Py_None) continue;
        PyObject *array = gemm_column_item(columns[known], start);
        good = array != NULL; /* attributes may be anybody's code: the column may have become shorter */
        if (!good) continue;
        Py_INCREF(array);
        if (!kind) kind = Py_TYPE(array);
        good = Py_TYPE(array) == kind && read_facts(array, facts, first[known], NULL);
        Py_DECREF(array);
    }
    Py_ssize_t i = 0;
    for (; good && i < count; i += good) {
        good = same_role(columns, start + i, in_place);
        for (int operand = 0; operand <= OUT && good; operand++) {
            PyObject *array = columns[operand] == Py_None ? NULL : gemm_column_item(columns[operand], start + i);
            if (!array) { /* not asked for, or the column has become shorter */
                good = columns[operand] == Py_None;
                continue;
            }
            if (array == before[operand]) {
                *field(&places[i], operand) = *field(&places[i - 1], operand);
                continue;
            }
            before[operand] = array;
            Py_INCREF(array);
            good = Py_TYPE(array) == kind && read_facts(array, facts, NULL, first[operand]);
            PyObject *value = good ? follow(array, address) : NULL;
            *field(&places[i], operand) = value ? PyLong_AsVoidPtr(value) : NULL;
            good = value && !PyErr_Occurred();
            Py_XDECREF(value);
            Py_DECREF(array);
        }
    }
    PyErr_Clear();
    for (int operand = 0; operand < known; operand++)
        for (Py_ssize_t fact = 0; columns[operand] != Py_None && fact < many; fact++) Py_DECREF(first[operand][fact]);
    return found(places, i, columns);
}

PyDoc_STRVAR(independent_doc,
             "independent(places, count, low, high, reads_c, room, share, /)\n--\n\n"
             "Whether so many products, of one kind, may be computed in any order.\n\n"
             "low, high: the bytes before and after the first element that a, b, c and out lie at. room: 32 bytes a "
             "product to write to.");

static PyObject *independent(PyObject *module, PyObject *arguments) {
    unsigned long long places, room, share;
    long long count, low[OUT + 1], high[OUT + 1];
    reach at;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "KL(LLLL)(LLLL)pKK:independent", &places, &count, &low[A], &low[B], &low[C],
                          &low[OUT], &high[A], &high[B], &high[C], &high[OUT], &at.reads_c, &room, &share))
        return NULL;
    if (count < 1 || count > MOST_ALIKE) return PyErr_Format(PyExc_ValueError, "%lld products at once", count);
    for (int operand = 0; operand <= OUT; operand++)
        at.low[operand] = (ptrdiff_t)low[operand], at.high[operand] = (ptrdiff_t)high[operand];
    const products all = {(const gemm_place *)(uintptr_t)places, (const char *)&at, 0, NULL, 0};
    return PyBool_FromLong(gemm_independent(&all, 0, count, (written *)(uintptr_t)room, share_at(share), 0));
}

PyMethodDef gemm_heads_methods[] = {
    {"handle_at", handle_at, METH_VARARGS, handle_at_doc},
    {"read_tensors", read_tensors, METH_VARARGS, read_tensors_doc},
    {"read_arrays", read_arrays, METH_VARARGS, read_arrays_doc},
    {"independent", independent, METH_VARARGS, independent_doc},
    {NULL, NULL, 0, NULL},
};
