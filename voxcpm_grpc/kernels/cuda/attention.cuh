// The kernels for attention that keep all operands in registers share this.
//
// A lane of a warp, `quad` * 4 + `part`, has 16-byte parts of rows: of row `quad` (and `quad` + 8) the parts `part` + 4 i
// with eight inputs each, i = 0 to 3. The sums over the inputs of a head admit any order of them, so these words are
// operands of the matrix instruction as they are. Both inputs of a rotation, 64 apart, are in one lane.

#include "registers.cuh"

constexpr int SIZE = 128;      // elements of a head
constexpr float NEVER = -1e30f;      // a key that does not exist has this score

__device__ __forceinline__ float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Two inputs of the first half of a head are rotated with the two of the other half that belong to them.
__device__ __forceinline__ void rotate(u32& a, u32& b, float cos0, float cos1, float sin0, float sin1) {
    const float a0 = low(a), a1 = high(a), b0 = low(b), b1 = high(b);
    a = pack(a0 * cos0 - b0 * sin0, a1 * cos1 - b1 * sin1);
    b = pack(b0 * cos0 + a0 * sin0, b1 * cos1 + a1 * sin1);
}
