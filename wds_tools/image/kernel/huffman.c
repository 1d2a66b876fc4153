#include "huffman.h"

static unsigned sum(const uint8_t *counts)
{
    unsigned total = 0;
    for (unsigned length = 1; length <= 16; length++)
        total += counts[length];
    return total;
}

bool huffman_decoder_open(huffman_decoder *table, const uint8_t *spec)
{
    table->counts[0] = 0;
    memcpy(table->counts + 1, spec, 16);
    table->total = sum(table->counts);
    if (table->total > 256)
        return false;
    memcpy(table->symbols, spec + 16, table->total);
    memset(table->symbol, 0, sizeof table->symbol);
    uint32_t code = 0;
    unsigned index = 0;
    for (unsigned length = 1; length <= 16; length++, code <<= 1) {
        unsigned count = table->counts[length];
        if (count && code + count >= 1u << length)
            return false; /* a code of ones only is not allowed either */
        table->offset[length] = (int32_t)index - (int32_t)code;
        table->last[length] = count ? (int32_t)(code + count) - 1 : -1;
        for (unsigned i = 0; i < count; i++, code++, index++) {
            if (length > LOOK)
                continue;
            uint16_t *at = table->symbol + (code << (LOOK - length));
            for (unsigned left = 1u << (LOOK - length); left; left--)
                *at++ = (uint16_t)(length << 8 | table->symbols[index]);
        }
    }
    return true;
}

unsigned huffman_read_long(const huffman_decoder *table, bit_reader *in)
{
    for (unsigned length = LOOK + 1; length <= 16; length++) {
        int32_t code = (int32_t)bits_peek(in, length);
        if (code <= table->last[length]) {
            bits_skip(in, length);
            return table->symbols[code + table->offset[length]];
        }
    }
    return NO_SYMBOL;
}

void huffman_decoder_skips(huffman_decoder *table)
{
    for (unsigned look = 0; look < 1u << LOOK; look++) {
        skip_entry entry = {0, 64, 64}; /* more than a block has: read symbol by symbol */
        unsigned advance = 0, bits = 0;
        while (bits < LOOK) {
            unsigned found = table->symbol[look << bits & ((1u << LOOK) - 1)];
            unsigned length = found >> 8, run = found >> 4 & 15, value = found & 15;
            if (!found || bits + length > LOOK || (!value && run && run != 15))
                break;
            unsigned end = !value && !run;
            if (advance + run + 1 > 63)
                break;
            bits += length + value;
            advance += run + 1;
            /* A run of 16 zeros must have a coefficient behind it. */
            entry.bits = (uint8_t)bits;
            entry.needs = (uint8_t)(advance + (!value && run));
            entry.advance = (uint8_t)(end ? 64 : advance);
            if (end)
                break;
        }
        table->skip[look] = entry;
    }
}

static bool assign_codes(huffman_encoder *table)
{
    memset(table->length, 0, sizeof table->length);
    memset(table->code, 0, sizeof table->code);
    uint32_t code = 0;
    unsigned index = 0;
    for (unsigned length = 1; length <= 16; length++, code <<= 1) {
        if (table->counts[length] && code + table->counts[length] >= 1u << length)
            return false;
        for (unsigned i = 0; i < table->counts[length]; i++, code++, index++) {
            table->code[table->symbols[index]] = (uint16_t)code;
            table->length[table->symbols[index]] = (uint8_t)length;
        }
    }
    return true;
}

bool huffman_encoder_open(huffman_encoder *table, const uint8_t *spec)
{
    table->counts[0] = 0;
    memcpy(table->counts + 1, spec, 16);
    table->total = sum(table->counts);
    if (table->total > 256)
        return false;
    memcpy(table->symbols, spec + 16, table->total);
    return assign_codes(table);
}

bool huffman_encoder_extend(huffman_encoder *table, uint8_t symbol)
{
    uint32_t next = 0; /* the code behind the last one, as long as the codes looked at */
    unsigned longest = 0;
    for (unsigned length = 1; length <= 16; length++) {
        next = (next << 1) + table->counts[length];
        if (table->counts[length])
            longest = length;
    }
    if (!longest || table->total >= 256)
        return false;
    next >>= 16 - longest;
    for (unsigned length = longest; length <= 16; length++, next <<= 1) {
        if (next + 1 >= 1u << length) /* a code of ones only is not allowed */
            continue;
        table->counts[length]++;
        table->symbols[table->total++] = symbol;
        table->code[symbol] = (uint16_t)next;
        table->length[symbol] = (uint8_t)length;
        return true;
    }
    return false;
}

/* Of equal weights the later symbol: so the made-up one gets the last of the longest codes. */
static unsigned rarest(const uint64_t *weight, const uint16_t *alive, unsigned count)
{
    unsigned best = 0;
    for (unsigned i = 1; i < count; i++) {
        uint64_t one = weight[alive[i]], other = weight[alive[best]];
        if (one < other || (one == other && alive[i] > alive[best]))
            best = i;
    }
    return best;
}

/* Every symbol of the tree lies one deeper; its last symbol. */
static unsigned deepen(const int16_t *next, unsigned *depth, unsigned symbol)
{
    for (;; symbol = (unsigned)next[symbol]) {
        depth[symbol]++;
        if (next[symbol] < 0)
            return symbol;
    }
}

/* The two rarest trees are joined until one is left; a made-up symbol, rarer than all, takes the code of ones only.
 * Then codes above 16 bits are shortened in pairs by T.81's figure K.3. */
void huffman_encoder_best(huffman_encoder *table, const uint64_t *frequency)
{
    uint64_t weight[257];
    int16_t next[257]; /* a tree is a list of its symbols */
    unsigned depth[257] = {0}, counts[258] = {0}, count = 0;
    uint16_t alive[257];
    for (unsigned i = 0; i < 257; i++) {
        weight[i] = i < 256 ? frequency[i] : 1;
        next[i] = -1;
        if (weight[i])
            alive[count++] = (uint16_t)i;
    }
    while (count > 1) {
        unsigned at = rarest(weight, alive, count), one = alive[at];
        alive[at] = alive[--count];
        at = rarest(weight, alive, count);
        weight[alive[at]] += weight[one];
        unsigned last = deepen(next, depth, alive[at]);
        deepen(next, depth, one);
        next[last] = (int16_t)one;
    }
    for (unsigned i = 0; i < 257; i++)
        if (depth[i])
            counts[depth[i]]++;
    for (unsigned length = 257; length > 16; length--)
        while (counts[length]) {
            unsigned shorter = length - 2;
            while (!counts[shorter])
                shorter--;
            counts[length] -= 2;
            counts[length - 1]++;
            counts[shorter + 1] += 2;
            counts[shorter]--;
        }
    unsigned longest = 16;
    while (longest && !counts[longest])
        longest--;
    if (longest)
        counts[longest]--; /* the made-up symbol's */
    table->counts[0] = 0;
    for (unsigned length = 1; length <= 16; length++)
        table->counts[length] = (uint8_t)counts[length];
    table->total = 0;
    for (unsigned length = 1; length < 258; length++)
        for (unsigned i = 0; i < 256; i++)
            if (depth[i] == length)
                table->symbols[table->total++] = (uint8_t)i;
    assign_codes(table);
}

void huffman_encoder_write(const huffman_encoder *table, uint8_t place, buffer *out)
{
    buffer_append_byte(out, place);
    buffer_append(out, table->counts + 1, 16);
    buffer_append(out, table->symbols, table->total);
}
