/* A hash table that grows up to a limit, from where on a fresh entry takes another's place: for
 * gemm._memo. Whose place is left to chance: a rotation over a few entries too many then misses some, not all. */
#ifndef GEMM_PYTHON_TABLE_H
#define GEMM_PYTHON_TABLE_H

#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stddef.h>
#include <stdint.h>

typedef struct {
    size_t key_bytes, entry_bytes; /* an entry begins with its key, which is whole words of 8 bytes */
    uint32_t most, count, room;    /* entries that it may have, has, and has memory for */
    char *entries;
    uint64_t *hashes;
    uint32_t *places, mask; /* 1 + the number of the entry there, or 0: free */
    uint64_t chance;
} table;

/* The entry with this key, until the table changes; NULL: there is none. */
void *gemm_table_find(const table *t, const void *key);

enum { NO_MEMORY = -1, FRESH, REPLACED };

/* Puts a copy of `entry` in the table. Where another one, with the same key or not, gives way, it goes to `before`. */
int gemm_table_put(table *t, const void *entry, void *before);

/* Frees the memory of a table, whose entries hold nothing any more; it is empty then. */
void gemm_table_free(table *t);

#endif
