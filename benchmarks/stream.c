/* The loops of STREAM, one slice a call: compiled and called by versus_peers.py. */

void copy(double *restrict a, const double *restrict b, long n) {
    for (long j = 0; j < n; j++) a[j] = b[j];
}

void triad(double *restrict a, const double *restrict b, const double *restrict c, long n) {
    for (long j = 0; j < n; j++) a[j] = b[j] + 3.0 * c[j];
}
