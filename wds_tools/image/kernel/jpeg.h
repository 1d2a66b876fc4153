/* The marker segments of a JPEG file, ITU-T T.81 annex B, as far as tiling and cropping need them.
 *
 * Only one kind of file is taken: Huffman-coded sequential DCT of 8 bits, one scan that holds all of the one or three
 * components, sampling factors of 1, 2 and 4. All others, and whatever is out of order, get a verdict other than FINE.
 * Offsets count from the first byte of the file and have been checked against its size.
 */
#ifndef WDS_JPEG_H
#define WDS_JPEG_H

#include "buffer.h"

enum { MAX_COMPONENTS = 3, MAX_BLOCKS = 10, TABLES = 4 };

typedef enum {
    FINE,
    NO_MEMORY,      /* malloc said no */
    WHOLE,          /* the answer is the file as it is */
    OUTSIDE,        /* the box does not lie in the picture */
    BAD_HEADER,     /* the marker segments are damaged */
    NOT_BASELINE,   /* progressive, arithmetic, 12 bits, several scans, CMYK … */
    BAD_SAMPLING,   /* sampling factors that are not served */
    BAD_TABLES,     /* Huffman tables missing or impossible */
    BAD_CODES,      /* the coded bits are damaged, or end early */
    BAD_MARKERS,    /* restart markers are missing or out of order */
    BAD_DC,         /* a DC value that cannot be coded */
    VERDICTS
} verdict;

typedef struct {
    uint8_t id, h, v, dc_table, ac_table;
} component;

typedef struct {
    uint8_t code;
    size_t body, length; /* behind the length field; where the next segment begins is body + length */
} segment;

typedef struct {
    const uint8_t *data;
    size_t size;
    unsigned width, height, interval;
    unsigned components, blocks; /* blocks of an MCU */
    component component[MAX_COMPONENTS];
    uint8_t block_component[MAX_BLOCKS];
    unsigned mcu_width, mcu_height; /* pixels */
    unsigned columns, rows;         /* MCUs */
    size_t sos, scan;               /* the scan's marker, its coded bits */
    const uint8_t *dc[TABLES], *ac[TABLES]; /* 16 counts, then the symbols */
} jpeg;

/* A part of the picture in MCUs: columns from left to right - 1, rows from top to bottom - 1. */
typedef struct {
    unsigned left, top, right, bottom;
} cells;

typedef struct {
    unsigned x, y, width, height;
} box;

/* The segment at `*at`, which moves behind it. */
bool jpeg_next_segment(const uint8_t *data, size_t size, size_t *at, segment *found);

verdict jpeg_parse(jpeg *image, const uint8_t *data, size_t size);

/* Where the coded bits that begin at `at` end: the next marker's FF, or `size` when there is none. */
size_t jpeg_segment_end(const uint8_t *data, size_t size, size_t at);

/* Entry points; `out` is to be freed by the caller whatever they answer. */
verdict jpeg_tile(const uint8_t *data, size_t size, unsigned pixels, bool optimise, buffer *out);
verdict jpeg_crop(const uint8_t *data, size_t size, box wanted, buffer *out, unsigned *dx, unsigned *dy);

#endif
