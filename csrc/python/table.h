/* A hash table with a maximum number of entries, for gemm._memo. In a full table, a new entry replaces an entry that
 * is chosen at random. If a program cycles through slightly more keys than fit, only some of its lookups fail. If the
 * new entry replaced the oldest entry instead, all of these lookups would fail. */
#ifndef GEMM_PYTHON_TABLE_H
#define GEMM_PYTHON_TABLE_H

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stddef.h>
#include <stdint.h>

typedef struct {
    size_t key_bytes, entry_bytes; /* an entry begins with its key; the key's size is a multiple of 8 bytes */
    uint32_t most, count, room;    /* maximum number of entries, number of entries, and allocated entries */
    char *entries;
    uint64_t *hashes;
    uint32_t *places, mask; /* places: 1 + the number of the entry, or 0 for a free place; mask: number of places - 1 */
    uint64_t chance;
} table;

/* Returns the entry with this key, or NULL. The pointer is valid until the table changes. */
void *gemm_table_find(const table *t, const void *key);

enum { NO_MEMORY = -1, FRESH, REPLACED };

/* Stores a copy of `entry`. Returns NO_MEMORY, FRESH or REPLACED. If REPLACED, `before` receives the replaced entry,
 * which has the same key or, if the table was full, another key. */
int gemm_table_put(table *t, const void *entry, void *before);

/* Frees the memory of a table, and empties it. The caller must have released the objects that the entries own. */
void gemm_table_free(table *t);

#endif
