// A stand-in for the CUDA runtime: what deploy/examples/cpp uses of it, with the host's memory for the device's.
#pragma once
#include <cstdlib>
#include <cstring>

enum cudaError { cudaSuccess = 0, cudaErrorMemoryAllocation = 2 };
typedef enum cudaError cudaError_t;
enum cudaMemcpyKind { cudaMemcpyHostToHost = 0, cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };
typedef struct CUstream_st* cudaStream_t;

inline char const* cudaGetErrorString(cudaError_t) { return "an error of the stand-in"; }
inline cudaError_t cudaMalloc(void** devPtr, size_t size) {
    *devPtr = std::malloc(size);
    return *devPtr ? cudaSuccess : cudaErrorMemoryAllocation;
}
inline cudaError_t cudaFree(void* devPtr) {
    std::free(devPtr);
    return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* dst, void const* src, size_t count, cudaMemcpyKind, cudaStream_t) {
    std::memcpy(dst, src, count);
    return cudaSuccess;
}
inline cudaError_t cudaStreamCreate(cudaStream_t* pStream) {
    *pStream = static_cast<cudaStream_t>(std::malloc(1));
    return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    std::free(stream);
    return cudaSuccess;
}
