/* A growing run of bytes. Once memory is short it stays `failed`, and further bytes are dropped. */
#ifndef WDS_BUFFER_H
#define WDS_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uint8_t *bytes;
    size_t size, room;
    bool failed;
} buffer;

static inline void buffer_free(buffer *into)
{
    free(into->bytes);
    memset(into, 0, sizeof *into);
}

/* Makes room for `more` bytes behind what is there. */
static inline bool buffer_reserve(buffer *into, size_t more)
{
    if (into->failed)
        return false;
    if (into->room - into->size >= more)
        return true;
    if (more > SIZE_MAX / 4 - into->size) {
        into->failed = true;
        return false;
    }
    size_t room = into->size + more + into->size / 2;
    uint8_t *bytes = realloc(into->bytes, room);
    if (!bytes) {
        into->failed = true;
        return false;
    }
    into->bytes = bytes;
    into->room = room;
    return true;
}

static inline void buffer_append(buffer *into, const uint8_t *bytes, size_t count)
{
    if (count && buffer_reserve(into, count)) {
        memcpy(into->bytes + into->size, bytes, count);
        into->size += count;
    }
}

static inline void buffer_append_byte(buffer *into, uint8_t byte)
{
    buffer_append(into, &byte, 1);
}

#endif
