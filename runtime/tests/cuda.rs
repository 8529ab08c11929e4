//! The CUDA device without a GPU: what it says.

use unglue_runtime::{CudaDevice, CudaOptions, RuntimeError};

/// No machine has so many GPUs; most that build this have no driver either.
#[test]
fn a_missing_gpu_is_an_error_with_a_way_out() {
    match CudaDevice::new(CudaOptions { ordinal: 4096 }) {
        Err(e @ RuntimeError::Driver { .. }) => {
            let text = e.to_string();
            assert!(text.contains("compute capability 9.0") && text.contains("--device"), "{text}");
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("a device without a GPU"),
    }
}
