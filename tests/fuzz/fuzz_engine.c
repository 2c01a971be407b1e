/* libFuzzer's entry point: computes one product, decoded from the input bytes. With -DSEEDED, this file is a program
 * that computes random products without libFuzzer: fuzz_engine SECONDS SEED. */
#include "product.h"

#ifndef SEEDED

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    stream s = {data, data + size, size};
    gemm_set_num_threads(4); /* independent of the number of CPUs */
    product(&s, 4);
    return 0;
}

#else

#include <time.h>

int main(int count, char **arguments) {
    const time_t end = time(NULL) + (count > 1 ? atoi(arguments[1]) : 10);
    stream s = {.state = count > 2 ? (uint64_t)atoll(arguments[2]) : 1};
    long done = 0;
    gemm_set_num_threads(4);
    do product(&s, 4);
    while (++done % 16 || time(NULL) < end);
    printf("%ld products\n", done);
    return 0;
}

#endif
