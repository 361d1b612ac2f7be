// Makes a Python function of a C++ one: arguments are numbers and addresses, the GIL is released.
//
// method<add>("add") in the method table is all a kernel needs. The caller
// answers for addresses and sizes: nothing is checked here but the count and kind of arguments.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

namespace stepwire {

template <typename T>
T from_python(PyObject* value) {
  if constexpr (std::is_pointer_v<T>) {
    return reinterpret_cast<T>(static_cast<uintptr_t>(PyLong_AsUnsignedLongLong(value)));
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(PyFloat_AsDouble(value));
  } else {
    return static_cast<T>(PyLong_AsLongLong(value));
  }
}

template <typename T>
PyObject* to_python(T value) {
  if constexpr (std::is_same_v<T, bool>) {
    return PyBool_FromLong(value);
  } else if constexpr (std::is_floating_point_v<T>) {
    return PyFloat_FromDouble(value);
  } else {
    return PyLong_FromLongLong(value);
  }
}

template <typename Result, typename... Parameters, std::size_t... I>
PyObject* call_released(Result (*function)(Parameters...), PyObject* const* arguments,
                        std::index_sequence<I...>) {
  const std::tuple<Parameters...> values{from_python<Parameters>(arguments[I])...};
  if (PyErr_Occurred()) return nullptr;
  PyThreadState* const state = PyEval_SaveThread();
  if constexpr (std::is_void_v<Result>) {
    std::apply(function, values);
    PyEval_RestoreThread(state);
    Py_RETURN_NONE;
  } else {
    const Result result = std::apply(function, values);
    PyEval_RestoreThread(state);
    return to_python(result);
  }
}

template <typename Result, typename... Parameters>
PyObject* call_checked(Result (*function)(Parameters...), PyObject* const* arguments,
                       Py_ssize_t num_arguments) {
  constexpr Py_ssize_t kExpected = sizeof...(Parameters);
  if (num_arguments != kExpected) {
    PyErr_Format(PyExc_TypeError, "expected %zd arguments, got %zd", kExpected, num_arguments);
    return nullptr;
  }
  return call_released(function, arguments, std::index_sequence_for<Parameters...>{});
}

template <auto Function>
PyCFunction fastcall_of() {
  using Fast = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);
  const Fast fast = [](PyObject*, PyObject* const* arguments, Py_ssize_t num_arguments) {
    return call_checked(Function, arguments, num_arguments);
  };
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(fast));
}

template <auto Function>
PyMethodDef method(const char* name) {
  return {name, fastcall_of<Function>(), METH_FASTCALL, nullptr};
}

}  // namespace stepwire
