/* A plugin of qemu's user-mode emulation that counts AArch64 instructions by class.
 *
 *     QEMU_PLUGIN=file=count.so,out=FILE qemu-aarch64 PROGRAM
 *
 * writes a line to FILE when the program ends: the counts in the order of the classes below. A block
 * of instructions is classified when qemu translates it and counted whole whenever it is executed.
 *
 * Classes follow the encoding tables of the Arm Architecture Reference Manual (DDI 0487, C4.1). The
 * functions are those of docs/devel/tcg-plugins in qemu; only ones whose parameters are the same in
 * all versions of the interface are used, and VERSION is what the present qemu accepts.
 */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DOT, MULTIPLY, VECTOR, MEMORY, BRANCH, INTEGER, CLASSES };

typedef uint64_t plugin_id;
struct plugin_block;
struct plugin_instruction;

extern void qemu_plugin_register_vcpu_tb_trans_cb(
    plugin_id, void (*)(plugin_id, struct plugin_block *));
extern void qemu_plugin_register_vcpu_tb_exec_cb(
    struct plugin_block *, void (*)(unsigned, void *), int, void *);
extern void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void *), void *);
extern size_t qemu_plugin_tb_n_insns(const struct plugin_block *);
extern struct plugin_instruction *qemu_plugin_tb_get_insn(const struct plugin_block *, size_t);
extern void *qemu_plugin_insn_haddr(const struct plugin_instruction *);

__attribute__((visibility("default"))) int qemu_plugin_version = VERSION;

struct block {
    struct block *next;
    uint64_t executions;
    uint32_t instructions[CLASSES];
};

static struct block *blocks;
static char path[4096];

static int is_dot(uint32_t word)
{
    return (word & 0x9F20FC00) == 0x0E009400     /* SDOT, UDOT (vector) */
        || (word & 0x9F00F400) == 0x0F00E000;    /* SDOT, UDOT (by element) */
}

static int is_multiplication(uint32_t word)
{
    uint32_t four = word >> 12 & 15, five = word >> 11 & 31, is_u = word >> 29 & 1;
    if ((word & 0x9F200C00) == 0x0E200000)       /* long: SMLAL, SMLSL, SMULL and unsigned */
        return four == 8 || four == 10 || four == 12;
    if ((word & 0x9F200400) == 0x0E200400)       /* MLA, MLS, MUL */
        return five == 18 || five == 19;
    if ((word & 0x9F000400) == 0x0F000000)       /* by element */
        return four == 2 || four == 6 || four == 10 || (four == 8 && !is_u)
            || ((four == 0 || four == 4) && is_u);
    return 0;
}

static int class_of(uint32_t word)
{
    uint32_t group = word >> 25 & 15;
    if ((group & 5) == 4)
        return MEMORY;
    if ((group & 7) == 7)
        return is_dot(word) ? DOT : is_multiplication(word) ? MULTIPLY : VECTOR;
    return (group & 14) == 10 ? BRANCH : INTEGER;
}

static void executed(unsigned processor, void *block)
{
    (void)processor;
    ((struct block *)block)->executions++;
}

static void translated(plugin_id id, struct plugin_block *source)
{
    struct block *block = calloc(1, sizeof *block);
    (void)id;
    if (!block)
        abort();
    for (size_t n = 0; n < qemu_plugin_tb_n_insns(source); n++) {
        uint32_t word;
        memcpy(&word, qemu_plugin_insn_haddr(qemu_plugin_tb_get_insn(source, n)), sizeof word);
        block->instructions[class_of(word)]++;
    }
    block->next = blocks;
    blocks = block;
    qemu_plugin_register_vcpu_tb_exec_cb(source, executed, 0, block);
}

static void ended(plugin_id id, void *data)
{
    uint64_t counts[CLASSES] = {0};
    FILE *file = fopen(path, "a");
    (void)id;
    (void)data;
    for (struct block *block = blocks; block; block = block->next)
        for (int n = 0; n < CLASSES; n++)
            counts[n] += block->executions * block->instructions[n];
    if (!file)
        return;
    for (int n = 0; n < CLASSES; n++)
        fprintf(file, "%llu%c", (unsigned long long)counts[n], n + 1 < CLASSES ? ' ' : '\n');
    fclose(file);
}

__attribute__((visibility("default"))) int qemu_plugin_install(
    plugin_id id, const void *info, int count, char **arguments)
{
    (void)info;
    for (int n = 0; n < count; n++)
        if (!strncmp(arguments[n], "out=", 4))
            snprintf(path, sizeof path, "%s", arguments[n] + 4);
    if (!path[0])
        return 1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, ended, NULL);
    return 0;
}
