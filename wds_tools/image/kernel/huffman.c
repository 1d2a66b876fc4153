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
    memset(table->entry, 0, sizeof table->entry);
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
            uint32_t *at = table->entry + (code << (LOOK - length)), entry = ENTRY(table->symbols[index], length);
            for (unsigned left = 1u << (LOOK - length); left; left--)
                *at++ = entry;
        }
    }
    return true;
}

uint32_t huffman_search(const huffman_decoder *table, const bit_reader *in)
{
    for (unsigned length = LOOK + 1; length <= 16; length++) {
        int32_t code = (int32_t)bits_peek(in, length);
        if (code <= table->last[length])
            return ENTRY(table->symbols[code + table->offset[length]], length);
    }
    return 0;
}

void huffman_decoder_skips(huffman_decoder *table)
{
    for (unsigned look = 0; look < 1u << LOOK; look++) {
        skip_entry entry = {0, 0, NOT_SEEN, 0};
        unsigned advance = 0, bits = 0;
        while (bits < LOOK) {
            uint32_t found = table->entry[look << bits & ((1u << LOOK) - 1)];
            unsigned length = ENTRY_LENGTH(found), run = found >> 4 & 15, value = found & 15;
            bool zeros = !value && run == 15, end = !value && !run;
            if (!found || bits + length > LOOK || value > AC_BITS || (!value && !zeros && !end) || advance + run + 1 > 63)
                break;
            bits += length + value;
            advance += run + 1;
            entry.bits = (uint8_t)bits;
            entry.advance = (uint8_t)advance;
            entry.needs = (uint8_t)(end ? BLOCK_ENDS : advance + zeros); /* a coefficient must follow the zeros */
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

typedef struct {
    uint64_t weight;
    int symbol, parent;
} tree;

static int by_weight(const void *one, const void *other)
{
    const tree *a = one, *b = other;
    if (a->weight != b->weight)
        return a->weight < b->weight ? -1 : 1;
    return b->symbol - a->symbol; /* so the made-up symbol is the first */
}

/* T.81's figure K.3: codes above 16 bits are shortened in pairs; `counts` are of codes by their length. */
static void limit_lengths(unsigned *counts, unsigned longest)
{
    for (unsigned length = longest; length > 16; length--)
        while (counts[length]) {
            unsigned shorter = length - 2;
            while (!counts[shorter])
                shorter--;
            counts[length] -= 2;
            counts[length - 1]++;
            counts[shorter + 1] += 2;
            counts[shorter]--;
        }
}

/* Huffman's algorithm over sorted weights: trees come to be in the order of their weight, so two queues do. A made-up
 * symbol, rarer than all, takes the code of ones only. */
void huffman_encoder_best(huffman_encoder *table, const uint64_t *frequency)
{
    tree nodes[2 * 257];
    unsigned counts[258] = {0}, depth[2 * 257], leaves = 1, longest = 0;
    nodes[0] = (tree){1, 256, 0};
    for (int i = 0; i < 256; i++)
        if (frequency[i])
            nodes[leaves++] = (tree){frequency[i], i, 0};
    qsort(nodes, leaves, sizeof *nodes, by_weight);
    unsigned size = leaves;
    for (unsigned leaf = 0, joined = leaves; size < 2 * leaves - 1; size++) {
        uint64_t weight = 0;
        for (int pair = 0; pair < 2; pair++) {
            bool take_leaf = leaf < leaves && (joined == size || nodes[leaf].weight <= nodes[joined].weight);
            tree *least = &nodes[take_leaf ? leaf++ : joined++];
            least->parent = (int)size;
            weight += least->weight;
        }
        nodes[size] = (tree){weight, 0, 0};
    }
    depth[size - 1] = 0;
    for (unsigned i = size - 1; i-- > 0;) {
        depth[i] = depth[nodes[i].parent] + 1;
        if (i < leaves)
            counts[depth[i]]++;
    }
    for (unsigned i = 0; i < leaves; i++)
        longest = depth[i] > longest ? depth[i] : longest;
    limit_lengths(counts, longest);
    unsigned last = longest < 16 ? longest : 16;
    while (last && !counts[last])
        last--;
    if (last)
        counts[last]--; /* the made-up symbol's */
    table->counts[0] = 0;
    for (unsigned length = 1; length <= 16; length++)
        table->counts[length] = (uint8_t)counts[length];
    table->total = leaves - 1;
    for (unsigned i = 1; i < leaves; i++) /* from the rarest to the most frequent: the longest codes come last */
        table->symbols[leaves - 1 - i] = (uint8_t)nodes[i].symbol;
    assign_codes(table);
}

void huffman_encoder_write(const huffman_encoder *table, uint8_t place, buffer *out)
{
    buffer_append_byte(out, place);
    buffer_append(out, table->counts + 1, 16);
    buffer_append(out, table->symbols, table->total);
}
