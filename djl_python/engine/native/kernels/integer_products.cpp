// Products with weights that are integers. See linear.h.

#include "products.h"

namespace djl {

void multiply_integers(Run& run, int index) {
    const Op& op = run.ops[index];
    run.bf16 ? with_integer_format<BF16>(op, product<BF16>(run, index)) : with_integer_format<F32>(op, product<F32>(run, index));
}

}  // namespace djl
