// A stand-in for TensorRT's C++ API: what deploy/examples/cpp uses of it, declared as NvInferRuntime.h does from 8.5 to
// 11 (64-bit dimensions since 10). Nothing here is TensorRT: an "engine" is the text `standin BATCH SIZE OUTPUTS TYPE`,
// where a BATCH of -4 is any of 4 and more, and output i of its network is the value that stands i/OUTPUTS of the way into the image. STANDIN_TENSORRT_FAULT as that
// in Python: no-context.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>

#include "cuda_fp16.h"
#include "cuda_runtime_api.h"

namespace nvinfer1 {

using AsciiChar = char;
enum class DataType : int32_t { kFLOAT = 0, kHALF = 1, kINT8 = 2, kINT32 = 3 };
enum class OptProfileSelector : int32_t { kMIN = 0, kOPT = 1, kMAX = 2 };
enum class TensorIOMode : int32_t { kNONE = 0, kINPUT = 1, kOUTPUT = 2 };

class Dims64 {
public:
    static constexpr int32_t MAX_DIMS{8};
    int32_t nbDims;
    int64_t d[MAX_DIMS];
};
using Dims = Dims64;

class ILogger {
public:
    enum class Severity : int32_t { kINTERNAL_ERROR = 0, kERROR = 1, kWARNING = 2, kINFO = 3, kVERBOSE = 4 };
    virtual void log(Severity severity, AsciiChar const* msg) noexcept = 0;
    virtual ~ILogger() = default;
};

struct StandinNetwork {
    int64_t batch = 0, size = 0, outputs = 0;
    DataType type = DataType::kFLOAT;
};

class IExecutionContext {
public:
    explicit IExecutionContext(StandinNetwork const& network) : network(network) {}
    bool setInputShape(char const* tensorName, Dims const& dims) noexcept {
        if (network.batch < 0 && dims.d[0] < -network.batch) return false;
        network.batch = dims.d[0];
        return std::string("images") == tensorName && dims.nbDims == 4 && dims.d[2] == network.size;
    }
    Dims getTensorShape(char const* tensorName) const noexcept {
        int64_t const batch = network.batch < 0 ? -1 : network.batch;
        if (std::string("images") == tensorName) return {4, {batch, 3, network.size, network.size}};
        return {2, {batch, network.outputs}};
    }
    bool setTensorAddress(char const* tensorName, void* data) noexcept {
        (std::string("images") == tensorName ? images : logits) = data;
        return true;
    }
    bool enqueueV3(cudaStream_t stream) noexcept {
        if (!stream || !images || !logits || network.batch < 1) return false;
        size_t const width = network.type == DataType::kHALF ? sizeof(__half) : sizeof(float);
        int64_t const values = 3 * network.size * network.size;
        for (int64_t i = 0; i < network.outputs; ++i)
            std::memcpy(static_cast<char*>(logits) + i * width,
                        static_cast<char*>(images) + i * values / network.outputs * width, width);
        return true;
    }

private:
    StandinNetwork network;
    void *images = nullptr, *logits = nullptr;
};

class ICudaEngine {
public:
    explicit ICudaEngine(StandinNetwork const& network) : network(network) {}
    int32_t getNbIOTensors() const noexcept { return 2; }
    char const* getIOTensorName(int32_t index) const noexcept { return index == 0 ? "images" : "logits"; }
    TensorIOMode getTensorIOMode(char const* tensorName) const noexcept {
        return std::string("images") == tensorName ? TensorIOMode::kINPUT : TensorIOMode::kOUTPUT;
    }
    DataType getTensorDataType(char const*) const noexcept { return network.type; }
    Dims getTensorShape(char const* tensorName) const noexcept {
        return IExecutionContext(network).getTensorShape(tensorName);
    }
    Dims getProfileShape(char const*, int32_t, OptProfileSelector) const noexcept {
        return {4, {-network.batch, 3, network.size, network.size}};
    }
    IExecutionContext* createExecutionContext() noexcept {
        char const* fault = std::getenv("STANDIN_TENSORRT_FAULT");
        return fault && std::string("no-context") == fault ? nullptr : new IExecutionContext(network);
    }

private:
    StandinNetwork network;
};

class IRuntime {
public:
    explicit IRuntime(ILogger& logger) : logger(logger) {}
    ICudaEngine* deserializeCudaEngine(void const* blob, std::size_t size) noexcept {
        std::istringstream words(std::string(static_cast<char const*>(blob), size));
        std::string magic, type;
        StandinNetwork network;
        words >> magic >> network.batch >> network.size >> network.outputs >> type;
        network.type = type == "half" ? DataType::kHALF : DataType::kFLOAT;
        if (magic == "standin" && words) return new ICudaEngine(network);
        logger.log(ILogger::Severity::kERROR, "this stand-in reads no other engines");
        return nullptr;
    }

private:
    ILogger& logger;
};

inline IRuntime* createInferRuntime(ILogger& logger) noexcept { return new IRuntime(logger); }

}  // namespace nvinfer1
