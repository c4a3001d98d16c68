// Products with weights that are floats. See linear.h.

#include "products.h"
#include "rescore.h"

namespace djl {

void multiply_floats(Run& run, int index) {
    const Op& op = run.ops[index];
    run.bf16 ? with_float_format<BF16>(op, product<BF16>(run, index)) : with_float_format<F32>(op, product<F32>(run, index));
}

void pick_tokens(Run& run, int index) {
    const Op& op = run.ops[index];
    pick(run, index, op, run.step_of(op));
}

}  // namespace djl
