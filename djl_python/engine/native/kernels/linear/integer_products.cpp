// Products with weights that are integers. See linear.h.

#include "linear/products.h"

namespace djl {

void multiply_integers(Run& run, int index) {
    const WeightFormat format = run.ops[index].linear.weight.format;
    run.bf16 ? with_integer_format<BF16>(format, product<BF16>(run, index))
             : with_integer_format<F32>(format, product<F32>(run, index));
}

}  // namespace djl
