// SPDX-License-Identifier: Apache-2.0
// Says which digit a picture shows, with a network from Python.
//
//   classify_png lenet.nnlp digit.png
#include <png.h>

#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "nnl/model.h"

namespace {

// The grey values of a picture of this size, from 0 to 1.
std::vector<float> read_png(const char* path, int64_t height, int64_t width) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  if (!png_image_begin_read_from_file(&image, path))
    throw std::runtime_error(std::string(path) + ": " + image.message);
  image.format = PNG_FORMAT_GRAY;
  if (image.height != height || image.width != width) {
    png_image_free(&image);
    throw std::runtime_error(std::string(path) + " has " + std::to_string(image.width) + " x " +
                             std::to_string(image.height) + " pixels, wanted " +
                             std::to_string(width) + " x " + std::to_string(height));
  }
  std::vector<png_byte> bytes(PNG_IMAGE_SIZE(image));
  if (!png_image_finish_read(&image, nullptr, bytes.data(), 0, nullptr))
    throw std::runtime_error(std::string(path) + ": " + image.message);
  std::vector<float> pixels(bytes.size());
  std::transform(bytes.begin(), bytes.end(), pixels.begin(),
                 [](png_byte b) { return static_cast<float>(b) / 255; });
  return pixels;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::fprintf(stderr, "usage: classify_png FILE.nnlp PICTURE.png\n");
    return 2;
  }
  nnl::Model model(argv[1], "classify");
  const nnl::Shape& shape = model.input("x").spec().shape;  // (1, 1, height, width)
  const std::vector<float> pixels = read_png(argv[2], shape.at(2), shape.at(3));
  model.input("x").copy_from(pixels.data(), pixels.size());
  model.run();
  const float* y = model.output("y").data<float>();
  const auto best = std::max_element(y, y + model.output("y").size()) - y;
  std::printf("%s shows a %d, with %.1f %%\n", argv[2], static_cast<int>(best), 100.0 * y[best]);
  return 0;
} catch (const std::exception& e) {
  std::fprintf(stderr, "classify_png: error: %s\n", e.what());
  return 1;
}
