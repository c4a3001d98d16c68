// Activation functions between two matrix products.

#pragma once

#include "program.h"
#include "vectors/formats.h"

namespace djl {
namespace {

// Applies an activation, as accurately as F, the format of the result, can hold.
template <class F>
inline Floats activate(Floats x, Activation activation) {
    const Floats half = floats(0.5f), one = floats(1.0f);
    switch (activation) {
        case kSilu:
            return x * F::logistic(x);
        case kQuickGelu:
            return x * F::logistic(floats(1.702f) * x);
        case kGeluTanh: {  // (1 + tanh(y)) / 2 is the logistic function of 2y
            const Floats cube = x * x * x;
            return x * F::logistic(fma(cube, floats(0.044715f), x) * floats(1.59576912f));
        }
        case kGelu:
            return half * x * (one + erf(x * floats(0.70710678f)));
        case kRelu:
            return max(Floats{}, x);  // x where it is NaN; so are the bounds below
        case kReluSquared:
            x = max(Floats{}, x);
            return x * x;
        default:
            return x;
    }
}

// xIELU, a curve of the epilogue's. Not inlined: it is rare, and its code would make products of one row 3 % slower.
inline __attribute__((noinline)) Floats xielu(Floats x, const Epilogue& epilogue) {
    const Floats low = min(x, Floats{}), high = max(x, Floats{});
    const Floats curve = (exp(low) - floats(1.0f) - low) * floats(epilogue.xielu_below);
    return fma(x, floats(epilogue.xielu_slope), fma(high * high, floats(epilogue.xielu_above), curve));
}

// activation(gate) * x
template <class F>
inline Floats gated(Floats gate, Floats x, const Epilogue& epilogue) {
    if (epilogue.activation != kClampedSwiglu) return activate<F>(gate, epilogue.activation) * x;
    const Floats limit = floats(epilogue.limit), one = floats(1.0f);
    gate = min(limit, gate);
    x = max(-limit, min(limit, x));
    return (x + one) * (gate * F::logistic(gate * floats(epilogue.alpha)));
}

}  // namespace
}  // namespace djl
