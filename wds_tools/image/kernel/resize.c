/* Antialiased bilinear resize, in fixed point.

   Each output pixel is a weighted mean of the source pixels under a triangle that is as wide as two output pixels, or
   two source pixels where the picture grows (the filter of Pillow's BILINEAR and of torch's antialias=True). Columns
   come first: their taps lie side by side in memory, and only as many rows as come out are left for the rows' pass.

   Weights have 14 bits behind the point and always sum up to one, so that flat areas stay flat; a pixel between the
   passes has 7, where other libraries round it to a whole number. The sums fit 32 bits, and the products are those of
   the instruction that multiplies 16-bit pairs and adds each two of them, which is why taps come in pairs. */

#include "resize.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <immintrin.h>
#define HAVE_AVX2 1
#endif

enum {
    WEIGHT_BITS = 14,
    BETWEEN_BITS = 7,                                       /* of a pixel between the passes */
    FIRST_SHIFT = WEIGHT_BITS - BETWEEN_BITS,
    LAST_SHIFT = WEIGHT_BITS + BETWEEN_BITS,
    SLACK = 32                                              /* loads may look so many samples past a row */
};

typedef struct {
    int count; /* output pixels */
    int taps;  /* of each, even */
    int first, last; /* the source pixels that any of them needs, the last not included */
    int *starts;     /* first source pixel of each */
    int16_t *weights;
} filter_taps;

static void filter_free(filter_taps *filter)
{
    free(filter->starts);
    free(filter->weights);
}

/* The taps of `count` output pixels over the source from `low` to `high`, which has `length` pixels in all. */
static int filter_make(filter_taps *filter, int count, double low, double high, int length)
{
    double scale = (high - low) / count, support = scale > 1 ? scale : 1;
    int most = 2 * support < length ? (int)ceil(2 * support) : length;
    filter->count = count;
    filter->taps = (most + 1) & ~1;
    filter->starts = malloc(sizeof(int) * (size_t)count);
    filter->weights = calloc((size_t)count * (size_t)filter->taps, sizeof(int16_t));
    double *exact = malloc(sizeof(double) * (size_t)filter->taps);
    if (!filter->starts || !filter->weights || !exact) {
        free(exact);
        return -1;
    }
    for (int i = 0; i < count; i++) {
        double centre = low + (i + 0.5) * scale, sum = 0;
        int begin = (int)(centre - support + 0.5), end = (int)(centre + support + 0.5); /* below 0: set right next */
        begin = begin < 0 ? 0 : begin > length - most ? length - most : begin;
        end = end > begin + most ? begin + most : end;
        for (int k = begin; k < end; k++) {
            double distance = fabs(k + 0.5 - centre);
            exact[k - begin] = distance < support ? support - distance : 0;
            sum += exact[k - begin];
        }
        int16_t *weights = filter->weights + (size_t)i * (size_t)filter->taps;
        double one = (1 << WEIGHT_BITS) / sum, upto = 0;
        int given = 0;
        for (int k = 0; k < end - begin; k++) {
            upto += exact[k] * one; /* sums are rounded, so that taps of less than a unit count as well */
            weights[k] = (int16_t)((int)(upto + 0.5) - given);
            given += weights[k];
        }
        filter->starts[i] = begin;
    }
    filter->first = filter->starts[0];
    filter->last = filter->starts[count - 1] + most;
    free(exact);
    return 0;
}

static void filter_mirror(filter_taps *filter)
{
    size_t bytes = sizeof(int16_t) * (size_t)filter->taps;
    for (int i = 0, j = filter->count - 1; i < j; i++, j--) {
        int start = filter->starts[i];
        filter->starts[i] = filter->starts[j];
        filter->starts[j] = start;
        int16_t *a = filter->weights + (size_t)i * (size_t)filter->taps;
        int16_t *b = filter->weights + (size_t)j * (size_t)filter->taps;
        for (size_t k = 0; k < bytes / sizeof(int16_t); k++) {
            int16_t weight = a[k];
            a[k] = b[k];
            b[k] = weight;
        }
    }
}

/* One row between the passes: the weighted sum of `taps` rows, in blocks that a compiler can make vectors of. */
static void columns_plain(const uint8_t *const *rows, const int16_t *weights, int taps, int count, int16_t *out)
{
    enum { BLOCK = 64 };
    int32_t sums[BLOCK];
    for (int start = 0; start < count; start += BLOCK) {
        int block = count - start < BLOCK ? count - start : BLOCK;
        for (int i = 0; i < block; i++)
            sums[i] = 1 << (FIRST_SHIFT - 1);
        for (int k = 0; k < taps; k++)
            for (int i = 0; i < block; i++)
                sums[i] += weights[k] * rows[k][start + i];
        for (int i = 0; i < block; i++)
            out[start + i] = (int16_t)(sums[i] >> FIRST_SHIFT);
    }
}

/* One row of each plane. */
static void row_plain(const int16_t *row, const filter_taps *filter, uint8_t *const planes[3])
{
    for (int x = 0; x < filter->count; x++) {
        const int16_t *weights = filter->weights + (size_t)x * (size_t)filter->taps;
        const int16_t *pixel = row + 3 * (filter->starts[x] - filter->first);
        int32_t sums[3] = {1 << (LAST_SHIFT - 1), 1 << (LAST_SHIFT - 1), 1 << (LAST_SHIFT - 1)};
        for (int k = 0; k < filter->taps; k++)
            for (int c = 0; c < 3; c++)
                sums[c] += weights[k] * pixel[3 * k + c];
        for (int c = 0; c < 3; c++)
            planes[c][x] = (uint8_t)(sums[c] >> LAST_SHIFT);
    }
}

#ifdef HAVE_AVX2
#define AVX2 __attribute__((target("avx2")))

AVX2 static inline __m256i weight_pair(const int16_t *weights)
{
    int32_t pair;
    memcpy(&pair, weights, sizeof pair);
    return _mm256_set1_epi32(pair);
}

AVX2 static void columns_avx2(const uint8_t *const *rows, const int16_t *weights, int taps, int count, int16_t *out)
{
    const __m256i zero = _mm256_setzero_si256(), half = _mm256_set1_epi32(1 << (FIRST_SHIFT - 1));
    for (int i = 0; i < count; i += 32) {
        if (i > count - 32)
            i = count - 32; /* the last samples once more, rather than samples that are not there */
        __m256i sum0 = half, sum1 = half, sum2 = half, sum3 = half;
        for (int k = 0; k < taps; k += 2) {
            __m256i weight = weight_pair(weights + k);
            __m256i a = _mm256_loadu_si256((const __m256i *)(rows[k] + i));
            __m256i b = _mm256_loadu_si256((const __m256i *)(rows[k + 1] + i));
            __m256i low = _mm256_unpacklo_epi8(a, b), high = _mm256_unpackhi_epi8(a, b);
            sum0 = _mm256_add_epi32(sum0, _mm256_madd_epi16(_mm256_unpacklo_epi8(low, zero), weight));
            sum1 = _mm256_add_epi32(sum1, _mm256_madd_epi16(_mm256_unpackhi_epi8(low, zero), weight));
            sum2 = _mm256_add_epi32(sum2, _mm256_madd_epi16(_mm256_unpacklo_epi8(high, zero), weight));
            sum3 = _mm256_add_epi32(sum3, _mm256_madd_epi16(_mm256_unpackhi_epi8(high, zero), weight));
        }
        __m256i low = _mm256_packs_epi32(_mm256_srai_epi32(sum0, FIRST_SHIFT), _mm256_srai_epi32(sum1, FIRST_SHIFT));
        __m256i high = _mm256_packs_epi32(_mm256_srai_epi32(sum2, FIRST_SHIFT), _mm256_srai_epi32(sum3, FIRST_SHIFT));
        /* Unpacking and packing work in halves of 16 bytes, so the halves are put in order here. */
        _mm256_storeu_si256((__m256i *)(out + i), _mm256_permute2x128_si256(low, high, 0x20));
        _mm256_storeu_si256((__m256i *)(out + i + 16), _mm256_permute2x128_si256(low, high, 0x31));
    }
}

/* One output pixel of two rows, one in each half: sums of red, green and blue, and one of no meaning. */
AVX2 static inline __m256i pixel_sums(const int16_t *upper, const int16_t *lower, const int16_t *weights, int taps)
{
    const __m256i pairs = _mm256_setr_epi8(0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, -1, -1, -1, -1,
                                           0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, -1, -1, -1, -1);
    __m256i sum = _mm256_set1_epi32(1 << (LAST_SHIFT - 1));
    for (int k = 0; k < taps; k += 2) {
        __m256i both = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(upper + 3 * k)));
        both = _mm256_inserti128_si256(both, _mm_loadu_si128((const __m128i *)(lower + 3 * k)), 1);
        both = _mm256_shuffle_epi8(both, pairs);
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(both, weight_pair(weights + k)));
    }
    return _mm256_srai_epi32(sum, LAST_SHIFT);
}

/* One row of each plane, and the row below it. */
AVX2 static inline __attribute__((always_inline)) void rows_of(int taps, const int16_t *upper, const int16_t *lower,
                                                               const filter_taps *filter,
                                                               uint8_t *const above[3], uint8_t *const below[3])
{
    for (int x = 0; x < filter->count; x += 4) {
        if (x > filter->count - 4)
            x = filter->count - 4;
        __m256i sums[4];
        for (int i = 0; i < 4; i++) {
            ptrdiff_t at = 3 * (ptrdiff_t)(filter->starts[x + i] - filter->first);
            const int16_t *weights = filter->weights + (size_t)(x + i) * (size_t)taps;
            sums[i] = pixel_sums(upper + at, lower + at, weights, taps);
        }
        __m256i a = _mm256_unpacklo_epi32(sums[0], sums[1]), b = _mm256_unpacklo_epi32(sums[2], sums[3]);
        __m256i c = _mm256_unpackhi_epi32(sums[0], sums[1]), d = _mm256_unpackhi_epi32(sums[2], sums[3]);
        __m256i red = _mm256_unpacklo_epi64(a, b), green = _mm256_unpackhi_epi64(a, b), blue = _mm256_unpacklo_epi64(c, d);
        __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(red, green), _mm256_packs_epi32(blue, blue));
        int32_t words[8];
        _mm256_storeu_si256((__m256i *)words, bytes);
        for (int plane = 0; plane < 3; plane++) {
            memcpy(above[plane] + x, &words[plane], 4);
            memcpy(below[plane] + x, &words[4 + plane], 4);
        }
    }
}

/* The usual numbers of taps are spelt out, so that the compiler unrolls their loops: a third faster. */
AVX2 static void rows_avx2(const int16_t *upper, const int16_t *lower, const filter_taps *filter,
                           uint8_t *const above[3], uint8_t *const below[3])
{
    switch (filter->taps) {
    case 2:
        rows_of(2, upper, lower, filter, above, below);
        break;
    case 4:
        rows_of(4, upper, lower, filter, above, below);
        break;
    case 6:
        rows_of(6, upper, lower, filter, above, below);
        break;
    default:
        rows_of(filter->taps, upper, lower, filter, above, below);
    }
}
#endif

static int has_avx2(void)
{
#ifdef HAVE_AVX2
    return __builtin_cpu_supports("avx2");
#else
    return 0;
#endif
}

int resize_rgb(picture_rgb picture, edges box, planes_rgb out, int mirrored, int portable)
{
    filter_taps across = {0}, down = {0};
    int16_t *between = NULL;
    const uint8_t **rows = NULL;
    int result = -1;
    if (filter_make(&across, out.width, box.left, box.right, picture.width) ||
        filter_make(&down, out.height, box.top, box.bottom, picture.height))
        goto end;
    int count = 3 * (across.last - across.first);
    size_t width = (size_t)count + SLACK;
    between = calloc(2 * width, sizeof *between);
    rows = malloc(sizeof *rows * (size_t)down.taps);
    if (!between || !rows)
        goto end;
    if (mirrored)
        filter_mirror(&across);
    int fast = !portable && has_avx2() && count >= 32 && out.width >= 4;
    size_t plane = (size_t)out.width * (size_t)out.height;
    uint8_t *planes[2][3];
    for (int y = 0; y < out.height; y++) {
        int16_t *row = between + (size_t)(y & 1) * width;
        for (int k = 0; k < down.taps; k++) {
            int at = down.starts[y] + k;
            at = at < picture.height ? at : picture.height - 1; /* a tap that only makes the number even */
            rows[k] = picture.pixels + at * picture.stride + 3 * (ptrdiff_t)across.first;
        }
        const int16_t *weights = down.weights + (size_t)y * (size_t)down.taps;
        for (int c = 0; c < 3; c++)
            planes[y & 1][c] = out.pixels + (size_t)c * plane + (size_t)y * (size_t)out.width;
#ifdef HAVE_AVX2
        if (fast) {
            columns_avx2(rows, weights, down.taps, count, row);
            if (y & 1)
                rows_avx2(between, between + width, &across, planes[0], planes[1]);
            else if (y == out.height - 1)
                rows_avx2(row, row, &across, planes[0], planes[0]);
            continue;
        }
#endif
        columns_plain(rows, weights, down.taps, count, row);
        row_plain(row, &across, planes[y & 1]);
    }
    result = 0;
end:
    free(rows);
    free(between);
    filter_free(&across);
    filter_free(&down);
    return result;
}
