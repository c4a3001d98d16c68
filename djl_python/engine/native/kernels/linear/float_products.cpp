// Products with weights that are floats. See linear.h.

#include "linear/products.h"
#include "sampling/rescore.h"

namespace djl {

void multiply_floats(Run& run, int index) {
    const WeightFormat format = run.ops[index].linear.weight.format;
    run.bf16 ? with_float_format<BF16>(format, product<BF16>(run, index)) : with_float_format<F32>(format, product<F32>(run, index));
}

void rescore_tokens(Run& run, int index) {
    const Op& op = run.ops[index];
    rescore(run, index, op.rescore, run.step_of(op));
}

}  // namespace djl
