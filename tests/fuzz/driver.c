/* Stands in for libFuzzer where there is no clang: changes seeds at random, without looking at coverage.
 *
 * driver RUNS SEED FILE…
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 1 << 14 };

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size);

static uint64_t state;

static uint64_t draw(uint64_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

static size_t changed(uint8_t *bytes, size_t size)
{
    static const uint8_t telling[] = {0,    1,    2,    3,    4,    0x11, 0x22, 0x3F, 0x7F,
                                      0x80, 0xC0, 0xC4, 0xD0, 0xD9, 0xDA, 0xDD, 0xFE, 0xFF};
    size_t at = draw(size), count = 1 + draw(8);
    switch (draw(6)) {
    case 0:
        bytes[at] ^= (uint8_t)(1u << draw(8));
        break;
    case 1:
        bytes[at] = (uint8_t)draw(256);
        break;
    case 2:
        bytes[at] = telling[draw(sizeof telling)];
        break;
    case 3:
        if (size - at > count && size > count + 16) {
            memmove(bytes + at, bytes + at + count, size - at - count);
            size -= count;
        }
        break;
    case 4:
        if (size + count <= MOST) {
            memmove(bytes + at + count, bytes + at, size - at);
            size += count;
        }
        break;
    default: /* nearer to the end, where the boxes are */
        bytes[size - 1 - draw(size < 8 ? size : 8)] = (uint8_t)draw(256);
    }
    return size;
}

int main(int count, char **words)
{
    if (count < 4)
        return 2;
    long runs = atol(words[1]);
    state = strtoull(words[2], NULL, 10) * 2 + 1;
    for (long run = 0; run < runs; run++) {
        static uint8_t bytes[MOST];
        FILE *file = fopen(words[3 + draw((uint64_t)count - 3)], "rb");
        if (!file)
            return 2;
        size_t size = fread(bytes, 1, MOST, file);
        fclose(file);
        for (uint64_t changes = size ? draw(6) : 0; changes; changes--)
            size = changed(bytes, size);
        LLVMFuzzerTestOneInput(bytes, size);
    }
    fprintf(stderr, "Done %ld runs\n", runs);
    return 0;
}
