"""The header of a library's interface."""

from __future__ import annotations

from cpembed.export.program import Program, Role
from cpembed.export.tables import STATUSES, documents

_SHARED = """\
#ifndef CPEMBED_INTERFACE
#define CPEMBED_INTERFACE
/* What functions return. */
{statuses}

/* A tensor that a caller gives: dense, row-major. */
typedef struct {{
  const char *name;
  const char *dtype;    /* as numpy spells it; bfloat16 as 16 bits, int7 and uint7 as bytes */
  int32_t rank;
  const int64_t *shape;
  int64_t bytes;
}} cpembed_tensor;
#endif
"""

_INTERFACE = """\
typedef struct NAME_handle NAME_handle;

/* Open the library. threads: 0 for DEFAULT. WEIGHTS_FILE
   A handle runs one call at a time; several handles are independent. */
int NAME_open(int threads, const char *weights_file, NAME_handle **handle);

/* End the threads and free everything; NULL is allowed. */
void NAME_close(NAME_handle *handle);

/* Pack the weights, once before the first run, or again: one pointer for each weight. They are
   copied. Needed where NAME_weight_count() is not 0. */
int NAME_pack(NAME_handle *handle, const void *const weights[]);

/* One call: a pointer for each input and output. Memory that is aligned to 64 bytes is used where
   it is, other memory copied. workspace: NAME_workspace_size() bytes, aligned to 64 bytes and free
   for other use between calls; NULL for the handle's own. */
int NAME_run(NAME_handle *handle, const void *const inputs[], void *const outputs[],
             void *workspace);
size_t NAME_workspace_size(void);

/* What a status means, in words; what a kernel said that failed. */
const char *NAME_status_text(int status);
const char *NAME_kernel_message(const NAME_handle *handle);

/* What is given: by number, NULL beyond the last. */
int NAME_input_count(void);
int NAME_output_count(void);
int NAME_weight_count(void);
const cpembed_tensor *NAME_input(int number);
const cpembed_tensor *NAME_output(int number);
const cpembed_tensor *NAME_weight(int number);

/* The steps of a run, one after the other: their number, their names, the nanoseconds of each
   (ns: a place for each step), and a part of them, first to last - 1. */
int NAME_step_count(void);
const char *NAME_step_name(int step);
int NAME_run_timed(NAME_handle *handle, const void *const inputs[], void *const outputs[],
                   void *workspace, double *ns);
int NAME_run_steps(NAME_handle *handle, int first, int last, const void *const inputs[],
                   void *const outputs[], void *workspace);

/* The memory of a buffer by its name, as the last steps left it, with its type and number of
   elements. It is the handle's own: valid until NAME_close; steps that follow, and NAME_pack, may
   write over it. NULL where there is none: of a name that is no buffer's, and of what lies in the
   caller's memory (inputs, outputs, weights that were only packed, a workspace that was given). */
const void *NAME_tensor(const NAME_handle *handle, const char *name, const char **dtype,
                        int64_t *elements);

/* The threads of a handle. */
int NAME_thread_count(const NAME_handle *handle);
"""


def header(program: Program, *, in_file: bool) -> str:
    """``NAME.h``; ``in_file``: constants are in a file beside the library."""
    name = program.name
    statuses = "\n".join(
        f"#define CPEMBED_{status} {code} /* {text} */" for status, (code, text) in STATUSES.items()
    )
    default = "the cores of the process" if not program.threads else f"{program.threads}"
    weights = "weights_file: the path of\n   NAME.weights, NULL for the one beside the library."
    if not in_file:
        weights = "weights_file: NULL, there is none."
    interface = (_INTERFACE.replace("DEFAULT", default).replace("WEIGHTS_FILE", weights)).replace(
        "NAME", name
    )
    given = "\n   ".join(documents(program).replace("*/", "* /").splitlines())
    note = "" if not program.of(Role.WEIGHTS) else "\n   Weights are packed before the first run."
    return (
        f"/* The library lib{name}.so.{note}\n\n   {given} */\n\n"
        f"#ifndef {name.upper()}_H\n#define {name.upper()}_H\n\n"
        "#include <stddef.h>\n#include <stdint.h>\n\n"
        '#ifdef __cplusplus\nextern "C" {\n#endif\n\n'
        f"{_SHARED.format(statuses=statuses)}\n{interface}\n"
        f"#ifdef __cplusplus\n}}\n#endif\n#endif\n"
    )
