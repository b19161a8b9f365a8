// Classify images with a TensorRT engine: the smallest whole C++ program.
//
//     python3 ../classify.py runs/t1/export --plain > model.txt
//     classify model.txt runs/t1/export/engines/<board>/<hash>.engine cat.ppm ...
//
// Images are PPM (P6, 8 bit), which any tool writes: `convert cat.jpg cat.ppm`, or `convert -auto-orient cat.jpg cat.ppm`
// for a model that was made with --exif apply. Resizing, cropping and normalising are
// those of Pillow and timm, so that the classes are those that `edgevit evaluate` sees. TensorRT 8.5 to 11.

#include <NvInfer.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <limits>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

struct Model {
    int size = 0, resize = 0;  // of the crop, and of the shorter side before it
    std::string interpolation;
    float mean[3] = {}, std[3] = {};
    std::vector<std::pair<int, std::string>> classes;  // column in the logits, and name
    double other = -std::numeric_limits<double>::infinity();  // an image with a lower score is of none of them
};

struct Image {
    int width = 0, height = 0;
    std::vector<uint8_t> rgb;  // [height, width, 3]
};

Model readModel(std::string const& path) {
    std::ifstream file(path);
    Model model;
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        std::string key;
        words >> key;
        if (key == "size") words >> model.size;
        if (key == "resize") words >> model.resize;
        if (key == "interpolation") words >> model.interpolation;
        if (key == "mean") words >> model.mean[0] >> model.mean[1] >> model.mean[2];
        if (key == "std") words >> model.std[0] >> model.std[1] >> model.std[2];
        if (key == "other") words >> model.other;
        if (key == "class") {
            int column = 0;
            std::string name;
            words >> column;
            words.get();  // the space that parts the two: others are of the name
            std::getline(words, name);
            model.classes.emplace_back(column, name);
        }
    }
    if (model.size <= 0 || model.resize < model.size || model.classes.empty())
        throw std::runtime_error(path + " does not describe a model; write it with classify.py --plain");
    return model;
}

Image readPpm(std::string const& path) {
    std::ifstream file(path, std::ios::binary);
    std::string magic;
    int most = 0;
    Image image;
    auto skipComments = [&] {
        while ((file >> std::ws) && file.peek() == '#') file.ignore(1 << 20, '\n');
    };
    file >> magic;
    for (int* number : {&image.width, &image.height, &most}) {
        skipComments();
        file >> *number;
    }
    file.get();  // the one white space before the pixels
    bool const known = file && magic == "P6" && most == 255 && image.width > 0 && image.height > 0 &&
                       image.width <= 1 << 15 && image.height <= 1 << 15;
    if (known) {
        image.rgb.resize(size_t(3) * image.width * image.height);
        file.read(reinterpret_cast<char*>(image.rgb.data()), std::streamsize(image.rgb.size()));
    }
    if (!known || !file) throw std::runtime_error(path + " is not an 8-bit PPM (P6); try: convert IMAGE image.ppm");
    return image;
}

// -- Pillow's resize: separable, the filter stretched when shrinking, rounded to 8 bits after each pass ---------------

std::pair<std::function<double(double)>, double> findFilter(std::string const& name) {  // and its reach
    if (name == "bilinear") return {[](double x) { return std::max(0.0, 1 - std::abs(x)); }, 1};
    if (name == "bicubic")
        return {[](double x) {
                    double const a = -0.5;
                    x = std::abs(x);
                    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
                    return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0.0;
                },
                2};
    throw std::runtime_error("interpolation " + name + " is not in this program; it knows bilinear and bicubic");
}

// Resizes the rows of an image [height, width, 3], and transposes it to [to, height, 3]: twice is both directions.
Image resizeRows(Image const& from, int to, std::string const& interpolation) {
    auto const [filter, reach] = findFilter(interpolation);
    double const scale = double(from.width) / to, stretch = std::max(1.0, scale);
    Image result{from.height, to, std::vector<uint8_t>(size_t(3) * from.height * to)};
    for (int x = 0; x < to; ++x) {
        double const center = (x + 0.5) * scale;
        int const first = std::max(0, int(center - reach * stretch + 0.5));
        int const last = std::min(from.width, int(center + reach * stretch + 0.5));
        std::vector<double> weights;
        double sum = 0;
        for (int i = first; i < last; ++i) {
            weights.push_back(filter((i - center + 0.5) / stretch));
            sum += weights.back();
        }
        for (int y = 0; y < from.height; ++y)
            for (int c = 0; c < 3; ++c) {
                double value = 0;
                for (int i = first; i < last; ++i)
                    value += weights[size_t(i - first)] * from.rgb[(size_t(y) * from.width + i) * 3 + c];
                double const rounded = std::floor(value / sum + 0.5);
                result.rgb[(size_t(x) * from.height + y) * 3 + c] = uint8_t(std::min(255.0, std::max(0.0, rounded)));
            }
    }
    return result;
}

std::vector<float> preprocess(Image const& image, Model const& model) {
    int const shorter = std::min(image.width, image.height), size = model.size;
    auto scaled = [&](int side) { return int(double(model.resize) * side / shorter); };
    Image const wide = resizeRows(image, scaled(image.width), model.interpolation);
    Image const small = resizeRows(wide, scaled(image.height), model.interpolation);
    int const left = int(std::nearbyint((small.width - size) / 2.0));  // half to even, as in Python
    int const top = int(std::nearbyint((small.height - size) / 2.0));
    std::vector<float> input(size_t(3) * size * size);  // [3, size, size]
    for (int c = 0; c < 3; ++c)
        for (int y = 0; y < size; ++y)
            for (int x = 0; x < size; ++x) {
                size_t const at = size_t(y + top) * small.width + x + left;
                float const value = small.rgb[3 * at + c] / 255.0F;
                input[(size_t(c) * size + y) * size + x] = (value - model.mean[c]) / model.std[c];
            }
    return input;
}

// -- TensorRT ---------------------------------------------------------------------------------------------------------

void check(cudaError_t status) {
    if (status != cudaSuccess) throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorString(status));
}

class Logger : public nvinfer1::ILogger {
    void log(Severity severity, char const* message) noexcept override {
        if (severity <= Severity::kWARNING) std::cerr << "TensorRT: " << message << '\n';
    }
};

// One input or output: memory on the device, and its values in the engine's own type on their way there and back.
class Tensor {
public:
    Tensor(nvinfer1::ICudaEngine& engine, nvinfer1::IExecutionContext& context, char const* name)
        : half(engine.getTensorDataType(name) == nvinfer1::DataType::kHALF) {
        if (!half && engine.getTensorDataType(name) != nvinfer1::DataType::kFLOAT)
            throw std::runtime_error(std::string(name) + " is neither fp32 nor fp16");
        auto const shape = context.getTensorShape(name);
        for (int i = 0; i < shape.nbDims; ++i) count *= size_t(shape.d[i]);
        bytes.resize(count * (half ? sizeof(__half) : sizeof(float)));
        check(cudaMalloc(&device, bytes.size()));
        if (!context.setTensorAddress(name, device)) throw std::runtime_error("TensorRT refuses its own tensor");
    }
    ~Tensor() { cudaFree(device); }
    Tensor(Tensor const&) = delete;
    Tensor& operator=(Tensor const&) = delete;

    void send(std::vector<float> const& values, cudaStream_t stream) {
        if (values.size() > count) throw std::runtime_error("the engine takes smaller images than model.txt says");
        for (size_t i = 0; i < values.size(); ++i)
            if (half)
                reinterpret_cast<__half*>(bytes.data())[i] = __float2half(values[i]);
            else
                reinterpret_cast<float*>(bytes.data())[i] = values[i];
        check(cudaMemcpyAsync(device, bytes.data(), bytes.size(), cudaMemcpyHostToDevice, stream));
    }
    std::vector<float> fetch(cudaStream_t stream) {
        check(cudaMemcpyAsync(bytes.data(), device, bytes.size(), cudaMemcpyDeviceToHost, stream));
        check(cudaStreamSynchronize(stream));
        std::vector<float> values(count);
        for (size_t i = 0; i < count; ++i)
            values[i] = half ? __half2float(reinterpret_cast<__half*>(bytes.data())[i])
                             : reinterpret_cast<float*>(bytes.data())[i];
        return values;
    }

private:
    bool half;
    size_t count = 1;
    std::vector<char> bytes;
    void* device = nullptr;
};

class Engine {
public:
    explicit Engine(std::string const& path) {
        std::ifstream file(path, std::ios::binary);
        std::vector<char> const plan((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
        runtime.reset(nvinfer1::createInferRuntime(logger));
        engine.reset(plan.empty() ? nullptr : runtime->deserializeCudaEngine(plan.data(), plan.size()));
        if (!engine) throw std::runtime_error("cannot read " + path + ": built elsewhere, or by another TensorRT?");
        context.reset(engine->createExecutionContext());
        if (!context) throw std::runtime_error("TensorRT cannot prepare to run " + path + "; close other programs");
        for (int i = 0; i < engine->getNbIOTensors(); ++i) {
            char const* name = engine->getIOTensorName(i);
            bool const isInput = engine->getTensorIOMode(name) == nvinfer1::TensorIOMode::kINPUT;
            (isInput ? inputName : outputName) = name;
        }
        auto shape = engine->getTensorShape(inputName.c_str());
        if (shape.d[0] < 0) {  // any number of images: the fewest that it takes, of which the first is ours
            shape = engine->getProfileShape(inputName.c_str(), 0, nvinfer1::OptProfileSelector::kMIN);
            if (!context->setInputShape(inputName.c_str(), shape)) throw std::runtime_error("it refuses its own shape");
        }
        check(cudaStreamCreate(&stream));
        input = std::make_unique<Tensor>(*engine, *context, inputName.c_str());
        output = std::make_unique<Tensor>(*engine, *context, outputName.c_str());
    }
    ~Engine() { cudaStreamDestroy(stream); }
    Engine(Engine const&) = delete;
    Engine& operator=(Engine const&) = delete;

    std::vector<float> run(std::vector<float> const& image) {
        input->send(image, stream);
        if (!context->enqueueV3(stream)) throw std::runtime_error("TensorRT could not run the engine");
        return output->fetch(stream);
    }

private:
    Logger logger;
    std::unique_ptr<nvinfer1::IRuntime> runtime;
    std::unique_ptr<nvinfer1::ICudaEngine> engine;
    std::unique_ptr<nvinfer1::IExecutionContext> context;
    std::string inputName, outputName;
    cudaStream_t stream = nullptr;
    std::unique_ptr<Tensor> input, output;
};

void printLikeliest(std::string const& name, std::vector<float> const& logits, Model const& model) {
    std::vector<float> chosen;
    for (auto const& entry : model.classes) chosen.push_back(logits.at(size_t(entry.first)));
    auto const best = std::max_element(chosen.begin(), chosen.end());
    double sum = 0;
    for (float value : chosen) sum += std::exp(double(value) - *best);
    bool const fits = *best + std::log(sum) >= model.other;  // the score: log-sum-exp of the target classes' logits
    std::cout << name << '\t' << (fits ? "" : "other\t") << model.classes[size_t(best - chosen.begin())].second << ' ' << 1 / sum << '\n';
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 4) {
        std::cerr << "usage: classify model.txt ENGINE IMAGE.ppm ...\n";
        return 2;
    }
    try {
        Model const model = readModel(argv[1]);
        Engine engine(argv[2]);
        for (int i = 3; i < argc; ++i) printLikeliest(argv[i], engine.run(preprocess(readPpm(argv[i]), model)), model);
    } catch (std::exception const& error) {
        std::cerr << "error: " << error.what() << '\n';
        return 1;
    }
}
