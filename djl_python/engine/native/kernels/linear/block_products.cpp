// Products with weights in blocks, their packing, their numbers, and rounding to them. See block_linear.h, pack_blocks.h,
// unpack_blocks.h and round_blocks.h.

#include "linear/products.h"
#include "linear/round_blocks.h"
#include "linear/unpack_blocks.h"

namespace djl {

void multiply_blocks(Run& run, int index) {
    const Op& op = run.ops[index];
    auto multiply = [&](auto panel) {
        linear_of_blocks<typename decltype(panel)::type>(run, index, op.linear, run.step_of(op));
    };
    run.bf16 ? with_block_format<BF16>(op.linear.weight.format, multiply)
             : with_block_format<F32>(op.linear.weight.format, multiply);
}

void pack_any_blocks(Run& run, int index) { pack_blocks(run, index, run.ops[index].pack_blocks); }

void unpack_any_blocks(Run& run, int index) {
    const UnpackBlocksOp& op = run.ops[index].unpack_blocks;
    run.bf16 ? unpack_blocks<BF16>(run, index, op) : unpack_blocks<F32>(run, index, op);
}

void round_any_blocks(Run& run, int index) {
    const RoundBlocksOp& op = run.ops[index].round_blocks;
    run.bf16 ? round_blocks<BF16>(run, index, op) : round_blocks<F32>(run, index, op);
}

}  // namespace djl
