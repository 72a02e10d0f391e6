/* Executes Intel AMX instructions on processors that lack them, for tests.
 *
 * Loading the library installs a SIGILL handler. An AMX instruction that traps is decoded, executed
 * on tile registers kept per thread, and skipped; any other illegal instruction goes to the handler
 * that was there before. So the machine code under test is the real one, bit for bit.
 *
 * Semantics: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2 (LDTILECFG,
 * TILERELEASE, TILEZERO, TILELOADD, TILELOADDT1, TILESTORED, TDPB[SU][SU]D, TDPBF16PS). What the
 * manual makes an exception (a wrong configuration, tiles whose shapes do not fit) ends the process
 * with a message: it is a fault of the code under test.
 *
 * Restarting an interrupted load (start_row) is not modelled: a load completes or the process ends.
 */
#define _GNU_SOURCE
#include <immintrin.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

enum { TILES = 8, MAX_ROWS = 16, ROW_BYTES = 64 };
enum { PREFIX_NONE = 0, PREFIX_66 = 1, PREFIX_F3 = 2, PREFIX_F2 = 3 };

typedef struct {
    uint8_t row[MAX_ROWS][ROW_BYTES];
    int rows;
    int row_bytes;
} tile;

static __thread tile tiles[TILES];
static __thread int configured;
static struct sigaction previous;
static long executed_products;
static long executed_instructions;

long amx_emulator_products(void) { return __atomic_load_n(&executed_products, __ATOMIC_RELAXED); }
long amx_emulator_instructions(void)
{
    return __atomic_load_n(&executed_instructions, __ATOMIC_RELAXED);
}

static void fault(const char *what)
{
    static const char head[] = "amx_emulator: ";
    ssize_t unused = write(2, head, sizeof head - 1);
    unused = write(2, what, strlen(what));
    unused = write(2, "\n", 1);
    (void)unused;
    _exit(70);
}

/* ------------------------------------------------------------------------------- configuration */

static void load_configuration(const uint8_t *data)
{
    memset(tiles, 0, sizeof tiles);
    configured = 0;
    if (data[0] == 0)
        return;
    if (data[0] != 1)
        fault("ldtilecfg: palette is neither 0 nor 1");
    if (data[1] != 0)
        fault("ldtilecfg: start_row is not 0");
    for (int i = 2; i < 16; i++)
        if (data[i])
            fault("ldtilecfg: a reserved byte is set");
    for (int i = 32; i < 48; i++)
        if (data[i])
            fault("ldtilecfg: a reserved byte is set");
    for (int i = 56; i < 64; i++)
        if (data[i])
            fault("ldtilecfg: a reserved byte is set");
    for (int t = 0; t < TILES; t++) {
        int row_bytes = data[16 + 2 * t] | data[17 + 2 * t] << 8;
        int rows = data[48 + t];
        if (rows > MAX_ROWS || row_bytes > ROW_BYTES || (rows == 0) != (row_bytes == 0))
            fault("ldtilecfg: a tile has a shape beyond the palette");
        tiles[t].rows = rows;
        tiles[t].row_bytes = row_bytes;
    }
    configured = 1;
}

static tile *usable(int number)
{
    if (!configured)
        fault("tile instruction without a tile configuration");
    if (tiles[number].rows == 0)
        fault("tile instruction on a tile that is not configured");
    return &tiles[number];
}

/* ---------------------------------------------------------------------------- loads and stores */

static void load(tile *t, const uint8_t *address, int64_t stride)
{
    memset(t->row, 0, sizeof t->row);
    for (int m = 0; m < t->rows; m++)
        memcpy(t->row[m], address + m * stride, t->row_bytes);
}

static void store(const tile *t, uint8_t *address, int64_t stride)
{
    for (int m = 0; m < t->rows; m++)
        memcpy(address + m * stride, t->row[m], t->row_bytes);
}

/* ------------------------------------------------------------------------------------ products */

static void check_product(const tile *c, const tile *a, const tile *b)
{
    if (c == a || c == b || a == b)
        fault("product with a tile used twice");
    if (c->row_bytes % 4 || a->row_bytes % 4 || c->rows != a->rows || b->row_bytes != c->row_bytes
        || a->row_bytes / 4 != b->rows)
        fault("product of tiles whose shapes do not fit");
}

static int32_t byte_at(const uint8_t *row, int i, int is_signed)
{
    return is_signed ? (int8_t)row[i] : row[i];
}

static void product_int8(tile *c, const tile *a, const tile *b, int signed_a, int signed_b)
{
    for (int m = 0; m < c->rows; m++) {
        uint32_t sum[ROW_BYTES / 4];
        memcpy(sum, c->row[m], ROW_BYTES);
        for (int k = 0; k < b->rows; k++)
            for (int n = 0; n < c->row_bytes / 4; n++)
                for (int i = 0; i < 4; i++) /* unsigned: sums wrap at 32 bits */
                    sum[n] += (uint32_t)(byte_at(a->row[m], 4 * k + i, signed_a)
                                         * byte_at(b->row[k], 4 * n + i, signed_b));
        memcpy(c->row[m], sum, ROW_BYTES);
    }
}

static float float_of(const uint8_t *bfloat16)
{
    uint32_t bits = (uint32_t)bfloat16[0] << 16 | (uint32_t)bfloat16[1] << 24;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* Even and odd products are two chains of fused multiply-adds, added to the tile at the end. The
 * caller has set denormals to zero and rounding to nearest even. */
__attribute__((target("fma"))) static void product_bfloat16(tile *c, const tile *a, const tile *b)
{
    for (int m = 0; m < c->rows; m++) {
        float chain[ROW_BYTES / 4][2] = {{0}};
        float sum[ROW_BYTES / 4];
        memcpy(sum, c->row[m], ROW_BYTES);
        for (int k = 0; k < b->rows; k++)
            for (int n = 0; n < c->row_bytes / 4; n++)
                for (int i = 0; i < 2; i++)
                    chain[n][i] = __builtin_fmaf(float_of(a->row[m] + 4 * k + 2 * i),
                                                 float_of(b->row[k] + 4 * n + 2 * i), chain[n][i]);
        for (int n = 0; n < c->row_bytes / 4; n++)
            sum[n] += chain[n][0] + chain[n][1];
        memcpy(c->row[m], sum, ROW_BYTES);
    }
}

/* ------------------------------------------------------------------------------------ decoding */

typedef struct {
    int opcode;
    int prefix;
    int vector_register;
    int mod;
    int reg;
    int rm;
    int has_sib;
    uint8_t *base;   /* effective address without the index register */
    int64_t index;   /* scaled index register: the row stride of a tile load or store */
    int length;
} instruction;

static int64_t general_register(const mcontext_t *machine, int number)
{
    static const int order[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                  REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                  REG_R12, REG_R13, REG_R14, REG_R15};
    return machine->gregs[order[number]];
}

static int32_t displacement(const uint8_t *at, int bytes)
{
    int32_t value = 0;
    if (bytes == 1)
        return (int8_t)at[0];
    if (bytes == 4)
        memcpy(&value, at, 4);
    return value;
}

static void decode_memory(const mcontext_t *machine, const uint8_t *code, instruction *found,
                          int extend_base, int extend_index)
{
    const uint8_t *at = code + 5;
    int base = found->rm, no_base = 0, bytes;
    found->index = 0;
    found->has_sib = found->rm == 4;
    if (found->has_sib) {
        int sib = *at++;
        int index = (sib >> 3 & 7) | extend_index << 3;
        base = sib & 7;
        if (index != 4)
            found->index = general_register(machine, index) * (1 << (sib >> 6));
        no_base = base == 5 && found->mod == 0;
    }
    int relative = !found->has_sib && found->mod == 0 && found->rm == 5;
    bytes = found->mod == 1 ? 1 : found->mod == 2 || no_base || relative ? 4 : 0;
    int64_t address = displacement(at, bytes);
    found->length = (int)(at + bytes - code);
    if (relative)
        address += (int64_t)(uintptr_t)code + found->length;
    else if (!no_base)
        address += general_register(machine, base | extend_base << 3);
    found->base = (uint8_t *)(uintptr_t)address;
}

/* AMX instructions: VEX.128.0F38.W0 with opcode 49, 4B, 5C or 5E. Returns 0 for anything else. */
static int decode(const mcontext_t *machine, instruction *found)
{
    const uint8_t *code = (const uint8_t *)(uintptr_t)machine->gregs[REG_RIP];
    if (code[0] != 0xC4 || (code[1] & 0x1F) != 2 || (code[2] & 0x84) != 0)
        return 0;
    found->opcode = code[3];
    if (found->opcode != 0x49 && found->opcode != 0x4B && found->opcode != 0x5C
        && found->opcode != 0x5E)
        return 0;
    found->prefix = code[2] & 3;
    found->vector_register = ~(code[2] >> 3) & 15;
    found->mod = code[4] >> 6;
    found->reg = code[4] >> 3 & 7;
    found->rm = code[4] & 7;
    found->length = 5;
    if (found->mod != 3)
        decode_memory(machine, code, found, !(code[1] & 0x20), !(code[1] & 0x40));
    return 1;
}

/* ----------------------------------------------------------------------------------- execution */

static int execute_configuration(const instruction *found)
{
    if (found->mod == 3 && found->prefix == PREFIX_F2 && found->rm == 0) {
        memset(usable(found->reg)->row, 0, sizeof tiles[0].row); /* tilezero */
        return 1;
    }
    if (found->mod == 3 && found->prefix == PREFIX_NONE && found->reg == 0 && found->rm == 0) {
        memset(tiles, 0, sizeof tiles); /* tilerelease */
        configured = 0;
        return 1;
    }
    if (found->mod != 3 && found->prefix == PREFIX_NONE && found->reg == 0) {
        load_configuration(found->base + found->index);
        return 1;
    }
    return 0;
}

static int execute_move(const instruction *found)
{
    if (found->mod == 3 || !found->has_sib)
        return 0;
    if (found->prefix == PREFIX_F2 || found->prefix == PREFIX_66) /* tileloadd, tileloaddt1 */
        load(usable(found->reg), found->base, found->index);
    else if (found->prefix == PREFIX_F3)
        store(usable(found->reg), found->base, found->index);
    else
        return 0;
    return 1;
}

static int execute_product(const instruction *found)
{
    int is_bfloat16 = found->opcode == 0x5C;
    if (found->mod != 3 || found->vector_register >= TILES
        || (is_bfloat16 && found->prefix != PREFIX_F3))
        return 0;
    tile *c = usable(found->reg);
    const tile *a = usable(found->rm), *b = usable(found->vector_register);
    check_product(c, a, b);
    if (is_bfloat16)
        product_bfloat16(c, a, b);
    else
        product_int8(c, a, b, found->prefix == PREFIX_F2 || found->prefix == PREFIX_F3,
                     found->prefix == PREFIX_F2 || found->prefix == PREFIX_66);
    __atomic_add_fetch(&executed_products, 1, __ATOMIC_RELAXED);
    return 1;
}

static int execute(const instruction *found)
{
    switch (found->opcode) {
    case 0x49: return execute_configuration(found);
    case 0x4B: return execute_move(found);
    default: return execute_product(found);
    }
}

static void on_illegal_instruction(int signal_number, siginfo_t *information, void *context)
{
    mcontext_t *machine = &((ucontext_t *)context)->uc_mcontext;
    instruction found = {0};
    unsigned control = _mm_getcsr();
    (void)information;
    _mm_setcsr(0x9FC0); /* every exception masked, denormals are zero, round to nearest even */
    int done = decode(machine, &found) && execute(&found);
    _mm_setcsr(control);
    if (!done) { /* not ours: it traps again, in front of the handler that was there before */
        sigaction(signal_number, &previous, NULL);
        return;
    }
    machine->gregs[REG_RIP] += found.length;
    __atomic_add_fetch(&executed_instructions, 1, __ATOMIC_RELAXED);
}

__attribute__((constructor)) static void install(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_illegal_instruction;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    sigaction(SIGILL, &action, &previous);
}
