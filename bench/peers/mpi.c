/* All-reduce of f32 by MPI, one process per rank; the protocol of gloo.py beside it.
 *
 *   mpicc -O2 -o mpi mpi.c && mpirun -n 2 ./mpi NAME NETWORK BYTES ...
 */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { RUNS_MIN = 3, RUNS_MAX = 50 };
static const double BUDGET_SECONDS = 1.0;

static double all_reduce(float *values, float *sums, int count) {
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    MPI_Allreduce(values, sums, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    return MPI_Wtime() - start;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count) {
    qsort(values, count, sizeof *values, ascending);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static int runs_for(double warmup) {
    double runs = BUDGET_SECONDS / warmup;
    return runs < RUNS_MIN ? RUNS_MIN : runs > RUNS_MAX ? RUNS_MAX : (int)runs;
}

static void measure(const char *name, const char *network, long bytes) {
    int rank, world, count = (int)(bytes / sizeof(float));
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    float *values = malloc(bytes), *sums = malloc(bytes);
    if (!values || !sums) MPI_Abort(MPI_COMM_WORLD, 2);
    for (int i = 0; i < count; i++) values[i] = 1.0f, sums[i] = 0.0f;

    int runs = runs_for(all_reduce(values, sums, count));
    MPI_Bcast(&runs, 1, MPI_INT, 0, MPI_COMM_WORLD);
    double mine[RUNS_MAX], seconds[RUNS_MAX];
    for (int run = 0; run < runs; run++) mine[run] = all_reduce(values, sums, count);
    if (sums[count - 1] != (float)world) MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Allreduce(mine, seconds, runs, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("{\"peer\": \"%s\", \"world\": %d, \"bytes\": %ld, \"seconds_median\": %.9f, "
               "\"runs\": %d, \"network\": \"%s\"}\n",
               name, world, bytes, median(seconds, runs), runs, network);
        fflush(stdout);
    }
    free(values);
    free(sums);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    for (int i = 3; i < argc; i++) measure(argv[1], argv[2], atol(argv[i]));
    MPI_Finalize();
    return 0;
}
