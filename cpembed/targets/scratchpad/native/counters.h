/* What is counted, and its text for counters.py: a line each, a name and numbers. */
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>

struct Moved {
  uint64_t transfers = 0, bytes = 0, transactions = 0;
};

struct Tally {
  std::map<std::pair<int, bool>, Moved> moved;  // By operand, and whether it is a get.
  std::map<std::array<long, 4>, uint64_t> gemms;  // By m, n, k, variant.
  std::map<std::pair<std::string, std::array<long, 3>>, uint64_t> instructions;
  std::array<uint64_t, 4> others{};
};

enum Other { kZeroedBytes, kRowVectors, kColumnVectors, kBarriers };
static const char *const kOthers[] = {"zeroed_bytes", "row_vectors", "column_vectors", "barriers"};

static Tally tally;

static std::string tally_text(const std::vector<size_t> &peaks) {
  std::string made;
  auto put = [&](const std::string &word) { made += word + " "; };
  auto end = [&](uint64_t count) { made += std::to_string(count) + "\n"; };
  for (auto &[which, moved] : tally.moved) {
    put(which.second ? "get" : "put"), put(std::to_string(which.first));
    put(std::to_string(moved.transfers)), put(std::to_string(moved.bytes)), end(moved.transactions);
  }
  for (auto &[sizes, count] : tally.gemms) {
    put("gemm");
    for (long size : sizes) put(std::to_string(size));
    end(count);
  }
  for (auto &[call, count] : tally.instructions) {
    put("instruction"), put(call.first);
    for (long size : call.second) put(std::to_string(size));
    end(count);
  }
  for (int i = 0; i < 4; i++) put(kOthers[i]), end(tally.others[size_t(i)]);
  for (size_t peak : peaks) put("peak"), end(peak);
  return made;
}
