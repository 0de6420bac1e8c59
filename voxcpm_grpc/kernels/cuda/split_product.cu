// A product of tens of rows whose inputs are divided among the blocks of a cluster, added to the residual stream.
//
// out [rows, outputs] = residual + scale * x [rows, INPUTS] times weight [outputs, INPUTS]. All matrices are bfloat16 and
// row-major. squares [outputs / OUTPUTS, rows] has the sums of the squares of each row of out, of OUTPUTS columns each.
//
// A cluster of SPLITS blocks computes a tile of OUTPUTS outputs of ROWS rows. Each block has a part of the inputs. The
// weights are the first operand of the matrix unit, whose side is 64, and the rows are the second, whose side is a
// multiple of 8. One warp requests the first weights before the previous kernel has ended, and x afterwards, in slabs of
// 64 inputs. Groups of four warps multiply them.
//
// Then each block finishes a share of the rows. It sends its sums of each row, as bfloat16, to the shared memory of the
// block that finishes the row, itself included. That block adds up what it receives in float32, in the order of the inputs.
//
// The program is compiled with INPUTS, OUTPUTS, ROWS, SPLITS, WEIGHT_SLOTS and X_SLOTS (slabs in shared memory). `multiply`,
// the matrix instruction for ROWS rows, precedes this text.

constexpr int DEPTH = 64, SLABS = INPUTS / DEPTH;                       // inputs of a slab: 128 bytes of a row
constexpr int GROUPS = OUTPUTS / 64, CONSUMERS = 128 * GROUPS;          // groups of warps, and their threads
constexpr int WEIGHT_BYTES = OUTPUTS * 128, X_BYTES = ROWS * 128;       // bytes of a slab
constexpr int MOST_SLABS = (SLABS + SPLITS - 1) / SPLITS;               // slabs of a block, at most
constexpr bool KEEP_WEIGHT = WEIGHT_SLOTS >= MOST_SLABS, KEEP_X = X_SLOTS >= MOST_SLABS;      // no slot is used twice
constexpr int EIGHTS = ROWS / 8, MOST_EIGHTS = (EIGHTS + SPLITS - 1) / SPLITS;      // rows in groups of 8, and of a share
constexpr int PITCH = OUTPUTS + 4;  // floats of a finished row: this avoids bank conflicts
constexpr int UNITS = (8 * MOST_EIGHTS * (OUTPUTS / 8) + CONSUMERS - 1) / CONSUMERS;  // units of 8 outputs, of a thread
constexpr int PAIRS = (MOST_EIGHTS + 1) / 2;  // pairs of groups of a share: 16 bytes of each thread
constexpr int SUM_BYTES = CONSUMERS * 8;  // bytes of 8 rows of a tile: four sums of each thread

static_assert(8 * MOST_EIGHTS * PITCH * 4 <= X_SLOTS * X_BYTES, "finished rows take the place of x");

struct alignas(64) TensorMap { u64 words[16]; };

struct Arguments {
    const u16* residual;      // [rows, outputs]
    u16* out;                 // [rows, outputs], may be the residual
    float* squares;           // [outputs / OUTPUTS, rows]
    int rows, outputs;
    float scale;
};

struct Shared {
    u64 weight_full[WEIGHT_SLOTS], weight_empty[WEIGHT_SLOTS], x_full[X_SLOTS], x_empty[X_SLOTS], received;
};

__host__ __device__ constexpr int first_slab(int split) { return SLABS * split / SPLITS; }
__host__ __device__ constexpr int first_eight(int split) { return EIGHTS * split / SPLITS; }

__device__ __forceinline__ void sync_consumers() { asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory"); }

// All blocks of the cluster have started, and their barriers can be used.
__device__ __forceinline__ void await_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

struct Block {
    const TensorMap &weight, &x;
    const Arguments& a;
    Shared& s;
    char* const memory;      // slots of the weight, slots of x, received sums
    const u32 base;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int group = GROUPS > 1 ? __shfl_sync(~0u, warp / 4, 0) : 0;      // the compiler sees that all lanes have the same
    const int split = blockIdx.z, first_row = blockIdx.y * ROWS, first_output = blockIdx.x * OUTPUTS;
    const int slab = first_slab(split), slabs = first_slab(split + 1) - slab;
    const int eight = first_eight(split), eights = first_eight(split + 1) - eight;

    __device__ u32 weight_slot(int k) const { return base + k % WEIGHT_SLOTS * WEIGHT_BYTES; }
    __device__ u32 x_slot(int k) const { return base + WEIGHT_SLOTS * WEIGHT_BYTES + k % X_SLOTS * X_BYTES; }
    __device__ float* finished() const { return (float*)(memory + WEIGHT_SLOTS * WEIGHT_BYTES); }      // rows
    __device__ char* received() const { return memory + WEIGHT_SLOTS * WEIGHT_BYTES + X_SLOTS * X_BYTES; }

    // The barriers and the first weights come first: no previous kernel writes them.
    __device__ void start() const {
        if (threadIdx.x == CONSUMERS) {
            asm volatile("prefetch.tensormap [%0];" ::"l"(&weight) : "memory");
            asm volatile("prefetch.tensormap [%0];" ::"l"(&x) : "memory");
            for (int i = 0; i < WEIGHT_SLOTS; i++)
                init_barrier(shared_address(&s.weight_full[i]), 1), init_barrier(shared_address(&s.weight_empty[i]), CONSUMERS / 32);
            for (int i = 0; i < X_SLOTS; i++) init_barrier(shared_address(&s.x_full[i]), 1), init_barrier(shared_address(&s.x_empty[i]), CONSUMERS / 32);
            init_barrier(shared_address(&s.received), 1);
            asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory");
            expect(shared_address(&s.received), SPLITS * eights * SUM_BYTES);
            for (int k = 0; k < min(slabs, WEIGHT_SLOTS); k++) copy_weight(k);
        }
        __syncwarp();
        asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
        __syncthreads();
    }

    // ---- the thread that copies

    __device__ __forceinline__ void copy_weight(int k) const {
        copy(weight, weight_slot(k), slab + k, first_output, s.weight_full[k % WEIGHT_SLOTS], WEIGHT_BYTES);
    }

    __device__ __forceinline__ static void copy(
        const TensorMap& map, u32 to, int slab, int row, const u64& barrier, int bytes) {
        const u32 full = shared_address(&barrier);
        expect(full, bytes);
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%2, %3}], [%4];"
                     ::"r"(to), "l"(&map), "r"(slab * DEPTH), "r"(row), "r"(full) : "memory");
    }

    __device__ void copy_all() const {
        await_previous_kernel();
        for (int k = 0; k < slabs; k++) {
            if (!KEEP_WEIGHT && k >= WEIGHT_SLOTS) {
                wait_alone(shared_address(s.weight_empty + k % WEIGHT_SLOTS), k / WEIGHT_SLOTS + 1 & 1);
                copy_weight(k);
            }
            if (!KEEP_X && k >= X_SLOTS) wait_alone(shared_address(s.x_empty + k % X_SLOTS), k / X_SLOTS + 1 & 1);
            copy(x, x_slot(k), slab + k, first_row, s.x_full[k % X_SLOTS], X_BYTES);
        }
    }

    // ---- the groups of warps that multiply

    __device__ __forceinline__ static void arrive(const u64& barrier) {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
    }

    // Slab k is no longer read: others may replace its weights and its x.
    __device__ __forceinline__ void release(int k) const {
        if (!KEEP_WEIGHT && lane == 0 && k + WEIGHT_SLOTS < slabs) arrive(s.weight_empty[k % WEIGHT_SLOTS]);
        if (!KEEP_X && lane == 0 && k + X_SLOTS < slabs) arrive(s.x_empty[k % X_SLOTS]);
    }

    // The loop is unrolled, so that the places of slabs are constants.
    __device__ __forceinline__ void sum(float (&acc)[ROWS / 2]) const {
#pragma unroll
        for (int k = 0; k < MOST_SLABS; k++) {
            if (k >= slabs) break;
            wait(shared_address(s.weight_full + k % WEIGHT_SLOTS), k / WEIGHT_SLOTS & 1);
            wait(shared_address(s.x_full + k % X_SLOTS), k / X_SLOTS & 1);
            const u64 w = matrix(weight_slot(k) + group * 64 * 128), y = matrix(x_slot(k));
            begin_products();
#pragma unroll
            for (int i = 0; i < DEPTH / 16; i++) multiply(acc, matrix_from(w, 32 * i), matrix_from(y, 32 * i), k + i > 0);
            commit_products();
            if (!KEEP_WEIGHT || !KEEP_X) {
                asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
                if (k > 0) release(k - 1);
            }
        }
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
        for (int i = 0; i < ROWS / 2; i++) asm volatile("" : "+f"(acc[i]) :: "memory");
    }

    // Sends the sums of each row to the block that finishes it, in the place of this block and this thread, those of two
    // groups of rows together. All blocks send in the same order, which takes no longer than other orders and less code.
    __device__ __forceinline__ void send(const float (&acc)[ROWS / 2]) const {
        const u32 own = shared_address(received()) + (split * PAIRS * CONSUMERS + threadIdx.x) * 16;
#pragma unroll
        for (int to = 0; to < SPLITS; to++) {
            const int first = first_eight(to), end = first_eight(to + 1);
            const u32 barrier = in_block(shared_address(&s.received), to);
#pragma unroll
            for (int j = first; j < end; j += 2) {
                const float* v = acc + 4 * j;
                const u32 there = in_block(own + (j - first) / 2 * CONSUMERS * 16, to);
                const u32 words[2] = {pack(v[0], v[1]), pack(v[2], v[3])};
                if (j + 1 == end) {
                    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];"
                                 ::"r"(there), "r"(words[0]), "r"(words[1]), "r"(barrier) : "memory");
                    continue;
                }
                const u32 next[2] = {pack(v[4], v[5]), pack(v[6], v[7])};
                asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
                             ::"r"(there), "r"(words[0]), "r"(words[1]), "r"(next[0]), "r"(next[1]), "r"(barrier) : "memory");
            }
        }
    }

    // Adds up the sums of all blocks, and transposes them: a thread has four of eight rows.
    __device__ __forceinline__ void receive() const {
        const uint4* from = (const uint4*)received() + threadIdx.x;
        float* to = finished() + lane % 4 * 2 * PITCH + warp * 16 + lane / 4;
        sync_consumers();      // no warp reads x any more
        wait(shared_address(&s.received), 0);
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            if (2 * i >= eights) break;
            float sums[8] = {};
#pragma unroll
            for (int r = 0; r < SPLITS; r++) {
                const uint4 v = from[(r * PAIRS + i) * CONSUMERS];
                const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                for (int c = 0; c < 4; c++) sums[2 * c] += low(words[c]), sums[2 * c + 1] += high(words[c]);
            }
#pragma unroll
            for (int c = 0; c < 2; c++) {
                if (2 * i + c >= eights) break;
                float* at = to + 8 * (2 * i + c) * PITCH;
                at[0] = sums[4 * c], at[PITCH] = sums[4 * c + 1], at[8] = sums[4 * c + 2], at[PITCH + 8] = sums[4 * c + 3];
            }
        }
        sync_consumers();
    }

    // The i-th eight outputs of this thread have a row n of the block's share, and a first output. False past the end.
    __device__ __forceinline__ bool unit(int i, int& n, int& o) const {
        const int u = i * CONSUMERS + threadIdx.x;
        n = u / (OUTPUTS / 8), o = u % (OUTPUTS / 8) * 8;
        return n < 8 * eights && first_row + 8 * eight + n < a.rows;
    }

    __device__ __forceinline__ size_t place(int n, int o) const {
        return (size_t)(first_row + 8 * eight + n) * a.outputs + first_output + o;
    }

    __device__ __forceinline__ void add(const uint4 (&residual)[UNITS]) const {
#pragma unroll
        for (int i = 0; i < UNITS; i++) {
            int n, o;
            const bool here = unit(i, n, o);
            float squares = 0;
            if (here) {
                const float4* from = (const float4*)(finished() + n * PITCH + o);
                const float4 v[2] = {from[0], from[1]};
                const uint4 r = residual[i];
                const u32 y[4] = {pack(v[0].x * a.scale + low(r.x), v[0].y * a.scale + high(r.x)),
                                  pack(v[0].z * a.scale + low(r.y), v[0].w * a.scale + high(r.y)),
                                  pack(v[1].x * a.scale + low(r.z), v[1].y * a.scale + high(r.z)),
                                  pack(v[1].z * a.scale + low(r.w), v[1].w * a.scale + high(r.w))};
                *(uint4*)(a.out + place(n, o)) = make_uint4(y[0], y[1], y[2], y[3]);
#pragma unroll
                for (int c = 0; c < 4; c++) squares += low(y[c]) * low(y[c]) + high(y[c]) * high(y[c]);
            }
#pragma unroll
            for (int step = 1; step < OUTPUTS / 8; step *= 2) squares += __shfl_xor_sync(~0u, squares, step);
            if (here && o == 0) a.squares[(size_t)blockIdx.x * a.rows + first_row + 8 * eight + n] = squares;
        }
    }

    __device__ void compute() const {
        await_previous_kernel();
        uint4 residual[UNITS];
#pragma unroll
        for (int i = 0; i < UNITS; i++) {
            int n, o;
            if (unit(i, n, o)) residual[i] = *(const uint4*)(a.residual + place(n, o));
        }
        float acc[ROWS / 2];
        sum(acc);
        await_cluster();
        send(acc);
        receive();
        add(residual);
    }
};

extern "C" __global__ void __launch_bounds__(CONSUMERS + 32, 1)
split_product(const __grid_constant__ TensorMap weight, const __grid_constant__ TensorMap x, const __grid_constant__ Arguments a) {
    extern __shared__ char dynamic[];
    __shared__ Shared s;
    let_next_kernel_start();
    char* const memory = dynamic + (-shared_address(dynamic) & 1023);
    Block block{weight, x, a, s, memory, __shfl_sync(~0u, shared_address(memory), 0)};
    block.start();
    if (block.warp < CONSUMERS / 32) {
        block.compute();
    } else {
        if (threadIdx.x == CONSUMERS) block.copy_all();
        __syncwarp();
        await_cluster();
    }
}
