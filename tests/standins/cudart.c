/* A stand-in for libcudart, for tests where there is no GPU: device memory is host memory, work is done when it is
   enqueued, and a graph remembers only that it exists. Signatures are those of CUDA 11.4 to 13.

   STANDIN_CUDART_FAIL="cudaMalloc:2" makes that function return that error. standin_alive() is how many things have been
   made and not freed. STANDIN_CUDART_CAPTURE=refuse spoils captures, as a call that cannot be captured does. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int cudaError_t;
enum { OK = 0, INVALID = 1, MEMORY = 2, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901 };

struct stream { int capturing, spoiled; };
struct event { struct timespec at; };

static int alive = 0;
static unsigned flags = 0;
static cudaError_t last = OK;

int standin_alive(void) { return alive; }

static cudaError_t fails(const char *function) {
    const char *wanted = getenv("STANDIN_CUDART_FAIL");
    size_t length = strlen(function);
    if (wanted && !strncmp(wanted, function, length) && wanted[length] == ':') last = atoi(wanted + length + 1);
    else return OK;
    return last;
}

#define CHECK do { cudaError_t e = fails(__func__); if (e) return e; } while (0)

static cudaError_t make(void **result, size_t size) {
    if (!(*result = calloc(1, size ? size : 1))) return last = MEMORY;
    alive++;
    return OK;
}

static cudaError_t destroy(void *thing) {
    if (!thing) return last = INVALID;
    free(thing);
    alive--;
    return OK;
}

const char *cudaGetErrorName(cudaError_t e) {
    return e == MEMORY ? "cudaErrorMemoryAllocation" : e == 35 ? "cudaErrorInsufficientDriver" : "cudaErrorOther";
}
const char *cudaGetErrorString(cudaError_t e) { return e == MEMORY ? "out of memory" : "something else went wrong"; }
cudaError_t cudaGetLastError(void) { cudaError_t e = last; last = OK; return e; }

cudaError_t cudaGetDeviceCount(int *count) { CHECK; *count = 1; return OK; }
cudaError_t cudaRuntimeGetVersion(int *version) { CHECK; *version = 12060; return OK; }
cudaError_t cudaDeviceGetAttribute(int *value, int attribute, int device) {
    CHECK;
    *value = attribute == 16 ? 8 : attribute == 75 ? 8 : attribute == 76 ? 7 : 0;
    return device ? INVALID : OK;
}
cudaError_t cudaGetDeviceProperties(void *properties, int device) {
    CHECK;
    strcpy(properties, "Orin");
    return device ? INVALID : OK;
}
cudaError_t cudaGetDeviceFlags(unsigned *value) { CHECK; *value = flags; return OK; }
cudaError_t cudaSetDeviceFlags(unsigned value) { CHECK; flags = value; return OK; }
cudaError_t cudaMemGetInfo(size_t *unused, size_t *total) { CHECK; *unused = 250000000; *total = 8000000000; return OK; }

cudaError_t cudaMalloc(void **address, size_t size) { CHECK; return make(address, size); }
cudaError_t cudaFree(void *address) { CHECK; return destroy(address); }
cudaError_t cudaHostAlloc(void **address, size_t size, unsigned kind) { CHECK; return kind ? INVALID : make(address, size); }
cudaError_t cudaFreeHost(void *address) { CHECK; return destroy(address); }
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, int kind, void *stream) {
    CHECK;
    if ((kind != 1 && kind != 2) || !stream) return last = INVALID;
    memcpy(to, from, size);
    return OK;
}

cudaError_t cudaStreamCreateWithFlags(void **stream, unsigned kind) {
    CHECK;
    return kind == 1 ? make(stream, sizeof(struct stream)) : INVALID;
}
cudaError_t cudaStreamSynchronize(void *stream) {
    CHECK;
    struct stream *s = stream;
    if (s->capturing) { s->spoiled = 1; return last = CAPTURE_UNSUPPORTED; }
    return OK;
}
cudaError_t cudaStreamDestroy(void *stream) { CHECK; return destroy(stream); }

cudaError_t cudaEventCreateWithFlags(void **event, unsigned kind) {
    CHECK;
    return kind > 1 ? INVALID : make(event, sizeof(struct event));
}
cudaError_t cudaEventRecord(void *event, void *stream) {
    CHECK;
    if (!stream) return last = INVALID;
    clock_gettime(CLOCK_MONOTONIC, &((struct event *)event)->at);
    return OK;
}
cudaError_t cudaEventSynchronize(void *event) { CHECK; return event ? OK : INVALID; }
cudaError_t cudaEventElapsedTime(float *milliseconds, void *start, void *end) {
    CHECK;
    struct timespec a = ((struct event *)start)->at, b = ((struct event *)end)->at;
    *milliseconds = (float)((b.tv_sec - a.tv_sec) * 1e3 + (b.tv_nsec - a.tv_nsec) / 1e6);
    return OK;
}
cudaError_t cudaEventDestroy(void *event) { CHECK; return destroy(event); }

cudaError_t cudaStreamBeginCapture(void *stream, int mode) {
    CHECK;
    struct stream *s = stream;
    const char *wanted = getenv("STANDIN_CUDART_CAPTURE");
    if (mode != 1 || s->capturing) return last = INVALID;
    s->capturing = 1;
    s->spoiled = wanted && !strcmp(wanted, "refuse");
    return OK;
}
cudaError_t cudaStreamEndCapture(void *stream, void **graph) {
    CHECK;
    struct stream *s = stream;
    *graph = NULL;
    if (!s->capturing) return last = INVALID;
    s->capturing = 0;
    return s->spoiled ? (last = CAPTURE_INVALIDATED) : make(graph, 1);
}
cudaError_t cudaGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long kind) {
    CHECK;
    return graph && !kind ? make(executable, 1) : (last = INVALID);
}
cudaError_t cudaGraphLaunch(void *executable, void *stream) { CHECK; return executable && stream ? OK : INVALID; }
cudaError_t cudaGraphDestroy(void *graph) { CHECK; return destroy(graph); }
cudaError_t cudaGraphExecDestroy(void *executable) { CHECK; return destroy(executable); }
