// The hash definitions of mix64.py, modulo 2**64, and the integer types of every kernel. No header of CUDA or C is
// needed.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define GOLDEN 0x9E3779B97F4A7C15ull
#define POLY 0xD6E8FEB86659FD95ull

// Finaliser of SplitMix64.
__device__ __forceinline__ u64 mix64(u64 z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}
