//! Named steps at which a test can stop the world.
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tensor_pool_core::failpoint::{self, Action, Point};

fn find(name: &str) -> PyResult<Point> {
    failpoint::find(name)
        .ok_or_else(|| PyValueError::new_err(format!("no failpoint is called {name:?}; there are {}", failpoint::names().join(", "))))
}

#[pyfunction]
#[pyo3(signature = (name, action, *, skip = 0, delay_ns = 0))]
fn failpoint_arm(name: &str, action: &str, skip: u64, delay_ns: u64) -> PyResult<()> {
    let action = match action {
        "kill" => Action::Kill,
        "pause" => Action::Pause,
        "error" => Action::Error,
        "delay" => Action::Delay(Duration::from_nanos(delay_ns)),
        _ => return Err(PyValueError::new_err(format!("{action:?} is no action: kill, pause, error or delay"))),
    };
    failpoint::arm(find(name)?, action, skip);
    Ok(())
}

#[pyfunction]
#[pyo3(signature = (name = None))]
fn failpoint_disarm(name: Option<&str>) -> PyResult<()> {
    failpoint::disarm(name.map(find).transpose()?);
    Ok(())
}

#[pyfunction]
fn failpoint_names() -> Vec<&'static str> {
    failpoint::names()
}

pub fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(failpoint_arm, module)?)?;
    module.add_function(wrap_pyfunction!(failpoint_disarm, module)?)?;
    module.add_function(wrap_pyfunction!(failpoint_names, module)?)
}
