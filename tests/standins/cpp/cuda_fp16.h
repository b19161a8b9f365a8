// A stand-in for CUDA's half precision on the host: normal numbers, rounded to nearest; enough for images and logits.
#pragma once
#include <cmath>
#include <cstdint>

struct __half {
    uint16_t bits;
};

inline __half __float2half(float value) {
    int exponent = 0;
    float const fraction = std::frexp(std::fabs(value), &exponent);  // in [1/2, 1), or 0
    uint16_t const sign = std::signbit(value) ? 0x8000 : 0;
    if (fraction == 0 || exponent < -13) return {sign};
    auto const mantissa = static_cast<uint32_t>(std::nearbyint(std::ldexp(fraction, 11)));  // 1024 to 2048
    return {static_cast<uint16_t>(sign | (((exponent + 14) << 10) + (mantissa - 1024)))};
}

inline float __half2float(__half value) {
    int const exponent = (value.bits >> 10) & 31;
    float const mantissa = static_cast<float>((value.bits & 1023) | (exponent ? 1024 : 0));
    float const magnitude = std::ldexp(mantissa, (exponent ? exponent : 1) - 25);
    return value.bits & 0x8000 ? -magnitude : magnitude;
}
