/* Resizes pictures of random sizes and boxes, each in memory of exactly its size, which sanitizers watch.
 *
 * Aborts where the fast way and the portable one differ, where mirroring is not flipping, or where grey does not stay grey.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "resize.h"

static uint64_t state;

/* xorshift64: below `limit`. */
static unsigned drawn(unsigned limit)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)(state >> 33) % limit;
}

static int side(int most)
{
    return 1 + (int)drawn(drawn(4) ? 12 : (unsigned)most);
}

/* Two edges of a box within `length` pixels: on pixels, between them, or so near each other that nothing lies between. */
static void between(int length, double *low, double *high)
{
    int first = (int)drawn((unsigned)length), last = first + 1 + (int)drawn((unsigned)(length - first));
    *low = first;
    *high = last;
    switch (drawn(4)) {
    case 0:
        *low = 0;
        *high = length;
        break;
    case 1:
        *low += drawn(1000) / 1001.0;
        *high = *low + (last - *low) * (1 + drawn(1000)) / 1001.0;
        break;
    case 2:
        *high = *low + 1e-9;
        break;
    }
}

static void demand(int kept, const char *promise)
{
    if (kept)
        return;
    fprintf(stderr, "broken: %s\n", promise);
    abort();
}

static uint8_t *resized(picture_rgb picture, edges box, int width, int height, int mirrored, int portable)
{
    uint8_t *out = malloc(3 * (size_t)width * (size_t)height);
    demand(out && !resize_rgb(picture, box, (planes_rgb){out, width, height}, mirrored, portable), "memory suffices");
    return out;
}

static void check(int most)
{
    int width = side(most), height = side(most), out_width = side(most), out_height = side(most), flat = !drawn(4);
    size_t row = 3 * (size_t)width, size = row * (size_t)height, out_size = 3 * (size_t)out_width * (size_t)out_height;
    uint8_t *pixels = malloc(size);
    demand(pixels != NULL, "memory suffices");
    for (size_t i = 0; i < size; i++)
        pixels[i] = (uint8_t)(flat ? size & 255 : drawn(4) ? drawn(256) : 255);
    picture_rgb picture = {pixels, (ptrdiff_t)row, width, height};
    if (drawn(2)) {
        picture.pixels = pixels + size - row;
        picture.stride = -picture.stride;
    }
    edges box;
    between(width, &box.left, &box.right);
    between(height, &box.top, &box.bottom);
    uint8_t *out = resized(picture, box, out_width, out_height, 0, 0);
    uint8_t *mirrored = resized(picture, box, out_width, out_height, 1, 0);
    uint8_t *portable = resized(picture, box, out_width, out_height, 0, 1);
    demand(!memcmp(out, portable, out_size), "the portable way gives the same");
    for (size_t i = 0; i < out_size; i++) {
        size_t x = i % (size_t)out_width;
        demand(out[i] == mirrored[i - x + ((size_t)out_width - 1 - x)], "mirrored is flipped");
        demand(!flat || out[i] == (size & 255), "flat stays flat");
    }
    free(portable);
    free(mirrored);
    free(out);
    free(pixels);
}

int main(int count, char **words)
{
    long runs = count > 1 ? atol(words[1]) : 1000;
    state = 0x9E3779B97F4A7C15u;
    for (long i = 0; i < runs; i++)
        check(i % 50 ? 100 : 1000);
    printf("%ld resizes\n", runs);
    return 0;
}
