// Blocks send each other data: packets in global memory, and deliveries to the other block of a cluster.

constexpr u32 TRAVEL = 300;     // clocks that the fastest packet takes

// A packet carries its own readiness: three words and a tag, stored and loaded as one unit of 16 bytes. A reader that
// sees the tag of this exchange sees the words too, without a fence, a counter or a barrier.
__device__ __forceinline__ void send(uint4* to, u32 first, u32 second, u32 third, u32 tag) {
    asm volatile("{\n.reg .b64 lower, upper;\n.reg .b128 packet;\nmov.b64 lower, {%1, %2};\nmov.b64 upper, {%3, %4};\n"
                 "mov.b128 packet, {lower, upper};\nst.relaxed.gpu.global.b128 [%0], packet;\n}"
                 ::"l"(to), "r"(first), "r"(second), "r"(third), "r"(tag) : "memory");
}

__device__ __forceinline__ uint4 load_packet(const uint4* from) {
    uint4 v;
    asm volatile("{\n.reg .b64 lower, upper;\n.reg .b128 packet;\nld.relaxed.gpu.global.b128 packet, [%4];\n"
                 "mov.b128 {lower, upper}, packet;\nmov.b64 {%0, %1}, lower;\nmov.b64 {%2, %3}, upper;\n}"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from) : "memory");
    return v;
}

// Waits until packets that were sent at the clock `sent` can arrive: loads that come earlier only delay them. All threads
// of a warp call it.
__device__ __forceinline__ void await_travel(u32 sent) {
    while (clocks() - sent < TRAVEL) {}
    __syncwarp();
}

// Receives the packets at from[0], from[STRIDE], ... All threads of a warp call it. All are in flight together, and a
// thread loads only those again that it lacks itself.
template <int COUNT, int STRIDE> __device__ __forceinline__ void receive(uint4 (&packets)[COUNT], const uint4* from, u32 tag) {
    const long long start = clock64();
#pragma unroll
    for (int i = 0; i < COUNT; i++) packets[i] = load_packet(from + i * STRIDE);
    for (;;) {
        bool lost = false;
#pragma unroll
        for (int i = 0; i < COUNT; i++) lost |= packets[i].w != tag;
        if (!__any_sync(~0u, lost)) return;
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            if (packets[i].w != tag) packets[i] = load_packet(from + i * STRIDE);
        if (clock64() - start > TIMEOUT) __trap();
    }
}

// Stores 16 bytes in shared memory of the cluster and tells the barrier there, which expects the bytes.
__device__ __forceinline__ void deliver(u32 to, float a, float b, float c, float d, u32 barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                 ::"r"(to), "f"(a), "f"(b), "f"(c), "f"(d), "r"(barrier) : "memory");
}

// 4 bytes are stored likewise.
__device__ __forceinline__ void deliver_one(u32 to, float v, u32 barrier) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];"
                 ::"r"(to), "f"(v), "r"(barrier) : "memory");
}
