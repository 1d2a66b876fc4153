/* Antialiased bilinear resize of 8-bit RGB: interleaved rows in, three planes out. See resize.c. */
#ifndef WDS_TOOLS_RESIZE_H
#define WDS_TOOLS_RESIZE_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    const uint8_t *pixels; /* height rows of width RGB triples */
    ptrdiff_t stride;      /* bytes from one row to the next */
    int width, height;
} picture_rgb;

typedef struct {
    double left, top, right, bottom; /* edges in pixels; the filter may reach past them, not past the picture */
} edges;

typedef struct {
    uint8_t *pixels; /* three planes, one behind the other */
    int width, height;
} planes_rgb;

/* The box of the picture, resized to fill the planes, mirrored if asked. `portable` leaves out what needs AVX2; the
   result is the same to the bit. Returns 0, or -1 when memory ran out. The caller has checked every size. */
int resize_rgb(picture_rgb picture, edges box, planes_rgb out, int mirrored, int portable);

#endif
