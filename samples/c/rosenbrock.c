/* The minimum of Rosenbrock's function by Newton's method, from several threads at once.

     aotdiff build samples/rosenbrock.grad -o build
     cc samples/c/rosenbrock.c -Ibuild -o rosenbrock build/rosenbrock.so -lm -lpthread
     LD_LIBRARY_PATH=build ./rosenbrock

   The inner loop allocates nothing: the `_into` variants work in memory that was set aside before. */

#include "rosenbrock.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 10, THREADS = 4 };

static double dot(const double *a, const double *b) {
    double sum = 0.0;
    for (int i = 0; i < N; i++) sum += a[i] * b[i];
    return sum;
}

/* Conjugate gradients for H p = -g, stopped where the curvature is not positive. */
static int newton_step(const double *x, const double *g, double *p, void *memory, int64_t bytes) {
    double r[N], d[N], hd[N];
    for (int i = 0; i < N; i++) {
        p[i] = 0.0;
        d[i] = r[i] = -g[i];
    }
    double rr = dot(r, r), stop = 1e-16 * rr;
    for (int k = 0; k < 3 * N && rr > stop; k++) {
        int code = rosenbrock_hvp_into(x, d, N, hd, memory, bytes);
        if (code) return code;
        double curvature = dot(d, hd);
        if (curvature <= 0.0) {
            if (k == 0) memcpy(p, d, sizeof d);
            break;
        }
        double a = rr / curvature, before = rr;
        for (int i = 0; i < N; i++) {
            p[i] += a * d[i];
            r[i] -= a * hd[i];
        }
        rr = dot(r, r);
        for (int i = 0; i < N; i++) d[i] = r[i] + rr / before * d[i];
    }
    return 0;
}

/* Minimise from the point x; the value at the end, or NaN with a message. */
static double minimise(double *x) {
    double value, trial, g[N], p[N], y[N];
    int64_t for_gradient = rosenbrock_grad_workspace(x, N, &value, g);
    int64_t for_hvp = rosenbrock_hvp_workspace(x, x, N, p);
    int64_t bytes = for_gradient > for_hvp ? for_gradient : for_hvp;
    void *memory = bytes > 0 ? malloc((size_t)bytes) : NULL;
    if (memory == NULL) return NAN;
    for (int step = 0; step < 200; step++) {
        if (rosenbrock_grad_into(x, N, &value, g, memory, bytes)) goto failed;
        if (dot(g, g) < 1e-24) break;
        if (newton_step(x, g, p, memory, bytes)) goto failed;
        double t = 1.0, slope = dot(g, p);
        do {
            for (int i = 0; i < N; i++) y[i] = x[i] + t * p[i];
            if (rosenbrock_into(y, N, &trial, memory, bytes)) goto failed;
            t *= 0.5;
        } while (trial > value + 1e-4 * 2.0 * t * slope && t > 1e-12);
        memcpy(x, y, sizeof y);
    }
    free(memory);
    return value;
failed:
    fprintf(stderr, "%s\n", aotdiff_last_error());
    free(memory);
    return NAN;
}

static void *thread(void *point) {
    double value = minimise(point);
    double *result = malloc(sizeof value);
    if (result) *result = value;
    return result;
}

int main(void) {
    double x[3] = {1.0, 2.0, 3.0}, value, gradient[3];
    if (rosenbrock_grad(x, 3, &value, gradient)) {
        fprintf(stderr, "%s\n", aotdiff_last_error());
        return 1;
    }
    printf("value %g, gradient %g %g %g\n", value, gradient[0], gradient[1], gradient[2]);

    pthread_t threads[THREADS];
    double points[THREADS][N];
    for (int k = 0; k < THREADS; k++) {
        for (int i = 0; i < N; i++) points[k][i] = 0.2 * k + 0.05 * i;
        if (pthread_create(&threads[k], NULL, thread, points[k])) return 1;
    }
    int wrong = 0;
    for (int k = 0; k < THREADS; k++) {
        void *result = NULL;
        pthread_join(threads[k], &result);
        wrong += result == NULL || !(*(double *)result < 1e-20) || fabs(points[k][0] - 1.0) > 1e-8;
        free(result);
    }
    printf("%d of %d threads found the minimum\n", THREADS - wrong, THREADS);

    /* Errors are a code and a text of the thread. */
    int code = rosenbrock(x, -1, &value);
    printf("code %d: %s\n", code, aotdiff_last_error());
    char memory[64];
    code = rosenbrock_into(x, 3, &value, memory, sizeof memory);
    printf("code %d: %s\n", code, aotdiff_last_error());
    return wrong != 0;
}
