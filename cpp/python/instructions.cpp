// SPDX-License-Identifier: Apache-2.0
// Data only, compiled like the library: names of the instruction sets that the compiler used there.
extern const char* const nnl_instructions;
const char* const nnl_instructions =
    " "
#ifdef __AVX2__
    "avx2 "
#endif
#ifdef __FMA__
    "fma "
#endif
#ifdef __AVX512F__
    "avx512f "
#endif
#ifdef __AVX512BW__
    "avx512bw "
#endif
#ifdef __AVX512DQ__
    "avx512dq "
#endif
#ifdef __AVX512VL__
    "avx512vl "
#endif
#ifdef __AVX512VNNI__
    "avx512vnni "
#endif
#ifdef __AVX512BF16__
    "avx512bf16 "
#endif
    ;
