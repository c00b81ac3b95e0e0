#pragma once
namespace torch {
struct Device {
    int number;
    int index() const { return number; }
};
}  // namespace torch
