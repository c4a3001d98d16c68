// Products with weights that are integers. See linear.h.

#include "products.h"

namespace djl {
namespace {

template <class F>
void multiply(Run& run, int index) {
    const Op& op = run.ops[index];
    with_integer_format<F>(op, [&](auto panel) {
        linear<typename decltype(panel)::type>(run, index, op, run.step_of(op), [&] { return upcoming_weights<F>(run, index); });
    });
}

}  // namespace

void multiply_integers(Run& run, int index) { run.bf16 ? multiply<BF16>(run, index) : multiply<F32>(run, index); }

}  // namespace djl
