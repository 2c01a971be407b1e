/* See table.h. Open addressing: an entry is stored at the place of its hash, or at the next free place. */
#include "table.h"

#include <string.h>

enum { FIRST_ROOM = 8 }; /* entries in the first allocation */

static uint64_t hash_of(const table *t, const void *key) {
    const char *at = (const char *)key;
    uint64_t hash[2] = {0x9E3779B97F4A7C15u,
                        /* Two hashes in parallel: in each, every multiplication waits for the previous one. */
                        0x94D049BB133111EBu};
    size_t i = 0;
    for (; i + sizeof hash <= t->key_bytes; i += sizeof hash) {
        uint64_t word[2];
        memcpy(word, at + i, sizeof word);
        for (int j = 0; j < 2; j++) hash[j] = (hash[j] ^ word[j]) * 0xBF58476D1CE4E5B9u;
    }
    if (i < t->key_bytes) {
        uint64_t last;
        memcpy(&last, at + i, sizeof last);
        hash[0] = (hash[0] ^ last) * 0xBF58476D1CE4E5B9u;
    }
    const uint64_t both = (hash[0] ^ hash[1] >> 32) * 0xBF58476D1CE4E5B9u ^ hash[1];
    return both ^ both >> 32;
}

static char *entry_at(const table *t, uint32_t number) {
    return t->entries + number * t->entry_bytes;
}

/* Returns the index of the key in `places`, or the index of the free place where the search for the key ends. */
static uint32_t place_of(const table *t, const void *key, uint64_t hash) {
    uint32_t at = (uint32_t)hash & t->mask;
    for (; t->places[at]; at = (at + 1) & t->mask) {
        const uint32_t number = t->places[at] - 1;
        if (t->hashes[number] == hash && !memcmp(entry_at(t, number), key, t->key_bytes)) break;
    }
    return at;
}

void *gemm_table_find(const table *t, const void *key) {
    if (!t->count) return NULL;
    const uint32_t found = t->places[place_of(t, key, hash_of(t, key))];
    return found ? entry_at(t, found - 1) : NULL;
}

/* Allocates memory for more entries, and for at least twice as many places as entries. */
static int grow(table *t) {
    const uint32_t twice = t->room ? 2 * t->room : FIRST_ROOM, room = twice < t->most ? twice : t->most;
    uint32_t places = 2 * FIRST_ROOM;
    while (places < 2 * room) places *= 2;
    char *entries = (char *)PyMem_Realloc(t->entries, room * t->entry_bytes);
    if (!entries) return 0;
    t->entries = entries;
    uint64_t *hashes = (uint64_t *)PyMem_Realloc(t->hashes, room * sizeof *hashes);
    if (!hashes) return 0;
    t->hashes = hashes;
    uint32_t *fresh = (uint32_t *)PyMem_Calloc(places, sizeof *fresh);
    if (!fresh) return 0;
    PyMem_Free(t->places);
    t->places = fresh, t->mask = places - 1, t->room = room;
    for (uint32_t i = 0; i < t->count; i++) {
        uint32_t at = (uint32_t)t->hashes[i] & t->mask;
        while (t->places[at]) at = (at + 1) & t->mask;
        t->places[at] = i + 1;
    }
    return 1;
}

/* Frees the place `gap`. A search ends at the first free place. Therefore each later entry that a search would no
 * longer reach moves to the gap, and leaves a new gap. */
static void leave(table *t, uint32_t gap) {
    for (uint32_t at = (gap + 1) & t->mask; t->places[at]; at = (at + 1) & t->mask) {
        const uint32_t wanted = (uint32_t)t->hashes[t->places[at] - 1] & t->mask;
        /* A search for this entry does not pass the gap. */
        if (((at - wanted) & t->mask) < ((at - gap) & t->mask)) continue;
        t->places[gap] = t->places[at];
        gap = at;
    }
    t->places[gap] = 0;
}

int gemm_table_put(table *t, const void *entry, void *before) {
    const uint64_t hash = hash_of(t, entry);
    if (t->count == t->room && t->room < t->most && !grow(t)) return NO_MEMORY;
    uint32_t place = place_of(t, entry, hash), number = t->places[place] - 1;
    int result = REPLACED;
    if (t->places[place]) {
        memcpy(before, entry_at(t, number), t->entry_bytes);
    } else if (t->count < t->most) {
        number = t->count++;
        result = FRESH;
    } else {
        t->chance = t->chance * 6364136223846793005u + 1442695040888963407u;
        number = (uint32_t)(t->chance >> 33) % t->count;
        memcpy(before, entry_at(t, number), t->entry_bytes);
        leave(t, place_of(t, before, t->hashes[number]));
        place = place_of(t, entry, hash);
    }
    memcpy(entry_at(t, number), entry, t->entry_bytes);
    t->hashes[number] = hash;
    t->places[place] = number + 1;
    return result;
}

void gemm_table_free(table *t) {
    PyMem_Free(t->entries);
    PyMem_Free(t->hashes);
    PyMem_Free(t->places);
    t->entries = NULL, t->hashes = NULL, t->places = NULL;
    t->count = t->room = t->mask = 0;
}
