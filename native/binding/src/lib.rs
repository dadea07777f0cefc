//! The Python module `tensor_pool._native`: one file per class, no policy.
use pyo3::prelude::*;

mod aeron;
mod buffer_claim;
mod client;
mod cnc;
mod counter;
mod declared;
mod errors;
mod failpoints;
mod fork;
mod frame;
mod images;
mod inbox;
mod keepalive;
mod media_driver;
mod memory;
mod publication;
mod pump;
mod reader;
mod region;
mod subscription;
mod waiters;
mod writer;

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    fork::install();
    aeron::redirect_output();
    aeron::register(module)?;
    module.add("build_profile", if cfg!(debug_assertions) { "debug" } else { "release" })?;
    for register in [
        client::register,
        cnc::register,
        counter::register,
        failpoints::register,
        frame::register,
        inbox::register,
        keepalive::register,
        media_driver::register,
        memory::register,
        publication::register,
        pump::register,
        reader::register,
        region::register,
        subscription::register,
        waiters::register,
        writer::register,
    ] {
        register(module)?;
    }
    Ok(())
}
