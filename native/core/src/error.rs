//! What the core refuses, with the words a person needs.
use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};

pub type Result<T> = std::result::Result<T, CoreError>;

#[derive(Debug)]
pub enum CoreError {
    /// A file could not be made, opened or mapped.
    Region {
        message: String,
        path: PathBuf,
        hint: Cow<'static, str>,
    },
    /// Outside the allowed directories, behind a link, or not a regular file.
    PathNotAllowed {
        message: String,
        path: PathBuf,
        hint: Cow<'static, str>,
    },
    /// The first 64 bytes are not those of the region that was asked for.
    SuperblockMismatch {
        message: String,
        path: PathBuf,
    },
    StorageSpace {
        message: String,
        path: PathBuf,
        need_bytes: u64,
        have_bytes: u64,
        hint: Cow<'static, str>,
    },
    FrameTooLarge {
        need_bytes: u64,
        largest_stride_bytes: u64,
    },
    /// A failpoint with the action `error` was passed.
    Failpoint(&'static str),
    /// The caller asked for something that cannot be.
    Argument(String),
}

impl CoreError {
    pub fn argument(message: impl Into<String>) -> Self {
        Self::Argument(message.into())
    }

    pub fn region(path: &Path, message: impl Into<String>) -> Self {
        Self::region_with_hint(path, message, "")
    }

    pub fn region_with_hint(path: &Path, message: impl Into<String>, hint: impl Into<Cow<'static, str>>) -> Self {
        Self::Region { message: message.into(), path: path.to_owned(), hint: hint.into() }
    }

    pub fn not_allowed(path: &Path, message: impl Into<String>) -> Self {
        Self::PathNotAllowed { message: message.into(), path: path.to_owned(), hint: Cow::Borrowed("") }
    }
}

impl fmt::Display for CoreError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Region { message, .. }
            | Self::PathNotAllowed { message, .. }
            | Self::SuperblockMismatch { message, .. }
            | Self::StorageSpace { message, .. }
            | Self::Argument(message) => formatter.write_str(message),
            Self::FrameTooLarge { need_bytes, largest_stride_bytes } => {
                write!(formatter, "a frame of {need_bytes} bytes does not fit a stride of {largest_stride_bytes}")
            }
            Self::Failpoint(name) => write!(formatter, "failpoint {name}"),
        }
    }
}

impl std::error::Error for CoreError {}
