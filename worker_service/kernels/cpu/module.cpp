// The extension module worker_service.kernels._native: a table of kernels and nothing else.
#include "fastcall.h"
#include "isa.h"
#include "kernels.h"
#include "threads.h"

namespace stepwire {
namespace {

int get_isa() { return static_cast<int>(isa()); }
bool set_isa(int wanted) { return use_isa(static_cast<Isa>(wanted)); }

PyMethodDef methods[] = {
    method<get_isa>("isa"),
    method<set_isa>("use_isa"),
    method<num_threads>("num_threads"),
    method<set_num_threads>("set_num_threads"),
    method<count_wrong_jobs>("count_wrong_jobs"),
    method<packed_size_bf16>("packed_size_bf16"),
    method<pack_bf16>("pack_bf16"),
    method<linear_bf16>("linear_bf16"),
    method<packed_size_int8>("packed_size_int8"),
    method<pack_int8>("pack_int8"),
    method<linear_int8>("linear_int8"),
    method<packed_size_int4>("packed_size_int4"),
    method<pack_int4>("pack_int4"),
    method<linear_int4>("linear_int4"),
    method<rms_norm>("rms_norm"),
    method<silu_and_multiply>("silu_and_multiply"),
    method<attend>("attend"),
    method<greedy>("greedy"),
    method<draw>("draw"),
    method<run_decoder_layers>("run_decoder_layers"),
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "_native", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr,
};

}  // namespace
}  // namespace stepwire

PyMODINIT_FUNC PyInit__native() { return PyModule_Create(&stepwire::definition); }
