/* Read bandwidth: every thread adds up its share of 512 MiB, eight times; prints the best in GB/s. See machine.py. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

int main(void) {
    const size_t count = (size_t)1 << 27;
    float *data = aligned_alloc(64, count * sizeof *data);
    if (!data) return 1;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < count; i++) data[i] = 1.0f;
    double best_s = 1e9;
    volatile float total;
    for (int round = 0; round < 8; round++) {
        float sum = 0;
        double began_s = omp_get_wtime();
#pragma omp parallel for simd schedule(static) reduction(+ : sum)
        for (size_t i = 0; i < count; i++) sum += data[i];
        double took_s = omp_get_wtime() - began_s;
        if (took_s < best_s) best_s = took_s;
        total = sum;
    }
    (void)total;
    printf("%.2f\n", count * sizeof *data / best_s / 1e9);
    return 0;
}
