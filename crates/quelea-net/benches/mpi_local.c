/* Open MPI in shared memory: prints the milliseconds of every round at rank 0.
 *
 * usage: mpirun -n PROCESSES mpi_local allreduce|exchange ROUNDS ELEMENTS */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_UP = 5 };

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    if (argc != 4) {
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int is_pair = strcmp(argv[1], "exchange") == 0;
    int rounds = atoi(argv[2]), elements = atoi(argv[3]);
    int rank, size;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    float *vector = malloc(sizeof(float) * elements), *other = malloc(sizeof(float) * elements);
    double *times = malloc(sizeof(double) * rounds);
    for (int i = 0; i < elements; i++) {
        vector[i] = other[i] = 1.0f;
    }
    MPI_Barrier(MPI_COMM_WORLD);
    double last = MPI_Wtime();
    for (int step = 0; step < WARM_UP + rounds; step++) {
        if (is_pair) {
            MPI_Sendrecv(vector, elements, MPI_FLOAT, 1 - rank, 0, other, elements, MPI_FLOAT,
                         1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            for (int i = 0; i < elements; i++) {
                vector[i] = 0.5f * (vector[i] + other[i]);
            }
        } else {
            MPI_Allreduce(MPI_IN_PLACE, vector, elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            float scale = 1.0f / size;
            for (int i = 0; i < elements; i++) {
                vector[i] *= scale;
            }
        }
        double now = MPI_Wtime();
        if (step >= WARM_UP) {
            times[step - WARM_UP] = (now - last) * 1e3;
        }
        last = now;
    }
    for (int i = 0; rank == 0 && i < rounds; i++) {
        printf("%.6f ", times[i]);
    }
    MPI_Finalize();
    return 0;
}
