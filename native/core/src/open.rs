//! Opening a file that somebody else named (wire 15.21a.5): inside an allowed directory, behind no link, and a regular file.
//!
//! `realpath` and then `open` leaves a gap in which a parent directory can be swapped, so the kernel resolves and opens in one step: openat2 from a
//! descriptor of the allowed directory, or, where it is missing, a walk that opens one component at a time and follows no link. What comes back is an
//! O_PATH descriptor, which opens nothing: no FIFO blocks on it and no device notices. Only when that inode is a regular file with one name is it
//! opened for real, through the descriptor, so that it cannot be another file by then.
use crate::error::{CoreError, Result};
use crate::failpoint::{self, Point};
use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

const DIRECTORY: libc::c_int = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;

/// How a path below a directory is resolved. Both refuse every link and never leave the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Openat2,
    Walk,
}

static NO_OPENAT2: AtomicBool = AtomicBool::new(false);

/// openat2, or the walk once this kernel (or its sandbox) has said that it has none.
pub fn method() -> Method {
    if NO_OPENAT2.load(Ordering::Relaxed) || failpoint::pass(Point::OpenBeforeOpenat2).is_err() { Method::Walk } else { Method::Openat2 }
}

/// An open regular file.
#[derive(Debug)]
pub struct OpenFile {
    pub descriptor: OwnedFd,
    pub path: PathBuf,
    pub length: u64,
    pub device: u64,
    pub inode: u64,
}

/// Resolve base directories to their canonical form, once, at start-up.
pub fn canonical_base_dir(path: &Path) -> Result<PathBuf> {
    if !path.is_absolute() {
        return Err(CoreError::region(path, format!("{}: a base directory must be an absolute path", path.display())));
    }
    let canonical =
        path.canonicalize().map_err(|error| CoreError::region(path, format!("base directory {}: {}", path.display(), reason(&error))))?;
    if !canonical.is_dir() {
        return Err(CoreError::region(path, format!("base directory {} is not a directory", path.display())));
    }
    Ok(canonical)
}

/// Open an existing region file that lies below one of `allowed` (canonical directories).
pub fn open_file(path: &str, allowed: &[PathBuf], writable: bool) -> Result<OpenFile> {
    open_file_by(method(), path, allowed, writable)
}

pub fn open_file_by(method: Method, path: &str, allowed: &[PathBuf], writable: bool) -> Result<OpenFile> {
    let Spelled { canonical, crossed } = Spelled::parse(path)?;
    let base =
        allowed
            .iter()
            .filter(|base| canonical.starts_with(base) && canonical != **base)
            .max_by_key(|base| base.as_os_str().len())
            .ok_or_else(|| CoreError::not_allowed(&canonical, format!("{}: not below an allowed base directory", canonical.display())))?;
    let below = canonical.strip_prefix(base).expect("the base is a prefix");
    let base_descriptor = open_base(method, base)?;
    for directory in &crossed {
        check_crossed(method, &base_descriptor, base, directory)?;
    }
    let resolved = resolve(method, &base_descriptor, below, libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .map_err(|error| refusal(&canonical, &error))?;
    let checked = regular_file(&resolved, &canonical)?;
    let descriptor = reopen(&resolved, &canonical, writable)?;
    let opened = regular_file(&descriptor, &canonical)?;
    if (checked.st_dev, checked.st_ino) != (opened.st_dev, opened.st_ino) {
        return Err(CoreError::not_allowed(&canonical, format!("{}: another file was opened than was checked", canonical.display())));
    }
    Ok(OpenFile { descriptor, path: canonical, length: opened.st_size as u64, device: opened.st_dev, inode: opened.st_ino })
}

/// The directory below which files are made or looked up. Its own path may hold no link either: it is canonical, so a link in it appeared since.
pub fn open_base(method: Method, base: &Path) -> Result<OwnedFd> {
    if !base.is_absolute() {
        return Err(CoreError::not_allowed(base, format!("{}: a base directory must be absolute", base.display())));
    }
    let root = open_root().map_err(|error| CoreError::region(base, format!("cannot open /: {}", reason(&error))))?;
    let below = base.strip_prefix("/").expect("absolute");
    if below.as_os_str().is_empty() {
        return Ok(root);
    }
    resolve(method, &root, below, DIRECTORY).map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT) => CoreError::region(base, format!("base directory {} does not exist", base.display())),
        // the walk sees no directory where openat2 sees a link
        Some(libc::ELOOP | libc::ENOTDIR) if base.canonicalize().is_ok_and(|canonical| canonical != base) => {
            let words = "passes a symbolic link; base directories are resolved once, at the start";
            CoreError::not_allowed(base, format!("base directory {} {words}", base.display()))
        }
        _ => refusal_of(base, &format!("base directory {}", base.display()), &error),
    })
}

/// `x/..` is what it says only where `x` is a directory and no link: the kernel would go to the parent of what a link points to.
fn check_crossed(method: Method, base_descriptor: &OwnedFd, base: &Path, directory: &Path) -> Result<()> {
    let below = directory.strip_prefix(base).ok().filter(|below| !below.as_os_str().is_empty()).ok_or_else(|| {
        CoreError::not_allowed(directory, format!("{}/..: leaves the base directory {}", directory.display(), base.display()))
    })?;
    resolve(method, base_descriptor, below, DIRECTORY).map(drop).map_err(|error| refusal(directory, &error))
}

/// Open `below` (no `..`, not absolute) under a directory without following a link.
pub fn resolve(method: Method, directory: &OwnedFd, below: &Path, flags: libc::c_int) -> io::Result<OwnedFd> {
    match method {
        Method::Openat2 => match openat2(directory.as_raw_fd(), below, flags) {
            // Old kernels say ENOSYS, old sandboxes EPERM: the walk is as strict.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                NO_OPENAT2.store(true, Ordering::Relaxed);
                walk(directory, below, flags)
            }
            result => result,
        },
        Method::Walk => walk(directory, below, flags),
    }
}

fn openat2(directory: RawFd, below: &Path, flags: libc::c_int) -> io::Result<OwnedFd> {
    let name = c_string(below.as_os_str())?;
    // SAFETY: open_how is plain numbers; zero is a valid value of each.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = flags as u64;
    how.resolve = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS;
    // The kernel asks to try again when something is renamed underneath it.
    for _ in 0..64 {
        // SAFETY: the name is NUL-terminated and `how` has the size that is given.
        let descriptor = unsafe { libc::syscall(libc::SYS_openat2, directory, name.as_ptr(), &raw const how, size_of::<libc::open_how>()) };
        if descriptor >= 0 {
            // SAFETY: a new descriptor that nobody else owns.
            return Ok(unsafe { OwnedFd::from_raw_fd(descriptor as RawFd) });
        }
        let error = io::Error::last_os_error();
        if !matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) {
            return Err(error);
        }
    }
    Err(io::Error::from_raw_os_error(libc::EAGAIN))
}

fn walk(directory: &OwnedFd, below: &Path, flags: libc::c_int) -> io::Result<OwnedFd> {
    let mut components = below.components().peekable();
    let mut current = directory.try_clone()?;
    while let Some(component) = components.next() {
        let std::path::Component::Normal(name) = component else {
            return Err(io::Error::from_raw_os_error(libc::EXDEV));
        };
        let step = if components.peek().is_some() { DIRECTORY } else { flags | libc::O_NOFOLLOW };
        let name = c_string(name)?;
        // SAFETY: the name is NUL-terminated.
        let descriptor = unsafe { libc::openat(current.as_raw_fd(), name.as_ptr(), step) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nobody else owns.
        current = unsafe { OwnedFd::from_raw_fd(descriptor) };
    }
    Ok(current)
}

fn open_root() -> io::Result<OwnedFd> {
    // SAFETY: a constant NUL-terminated path.
    let descriptor = unsafe { libc::open(c"/".as_ptr(), DIRECTORY) };
    if descriptor < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Open for real the inode that an O_PATH descriptor holds. O_NONBLOCK is belt and braces: it is a regular file by now.
fn reopen(resolved: &OwnedFd, path: &Path, writable: bool) -> Result<OwnedFd> {
    let link = CString::new(format!("/proc/self/fd/{}", resolved.as_raw_fd())).expect("no NUL");
    let access = if writable { libc::O_RDWR } else { libc::O_RDONLY };
    // SAFETY: the name is NUL-terminated.
    let descriptor = unsafe { libc::open(link.as_ptr(), access | libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC) };
    if descriptor < 0 {
        let error = io::Error::last_os_error();
        let hint = if error.raw_os_error() == Some(libc::ENOENT) { "a checked file is opened through /proc: mount it" } else { "" };
        return Err(CoreError::region_with_hint(path, format!("{}: {}", path.display(), reason(&error)), hint));
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// fstat, and refuse everything but a regular file with one name. A second name may be one outside the allowed directories.
fn regular_file(descriptor: &OwnedFd, path: &Path) -> Result<libc::stat> {
    let status = status(descriptor).map_err(|error| CoreError::region(path, format!("{}: {}", path.display(), reason(&error))))?;
    let kind = match status.st_mode & libc::S_IFMT {
        libc::S_IFREG if status.st_nlink <= 1 => return Ok(status),
        libc::S_IFREG => "a file with hard links",
        libc::S_IFLNK => "a symbolic link",
        libc::S_IFDIR => "a directory",
        libc::S_IFIFO => "a FIFO",
        libc::S_IFSOCK => "a socket",
        libc::S_IFCHR | libc::S_IFBLK => "a device",
        _ => "something else",
    };
    Err(CoreError::not_allowed(path, format!("{}: {kind}, not a regular file of its own", path.display())))
}

pub fn status(descriptor: &OwnedFd) -> io::Result<libc::stat> {
    // SAFETY: stat is plain numbers; zero is a valid value of each.
    let mut status: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor and a stat to write to.
    if unsafe { libc::fstat(descriptor.as_raw_fd(), &mut status) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(status)
}

/// A path as somebody else wrote it.
struct Spelled {
    /// Without `.`, `..` and doubled slashes. Where every directory in `crossed` is one, and no link is passed, `realpath` says the same.
    canonical: PathBuf,
    /// The directories that a `..` follows.
    crossed: Vec<PathBuf>,
}

impl Spelled {
    fn parse(path: &str) -> Result<Self> {
        let given = Path::new(path);
        if !path.starts_with('/') {
            return Err(CoreError::not_allowed(given, format!("{path:?} is not an absolute path")));
        }
        if path.contains('\0') {
            return Err(CoreError::not_allowed(given, format!("{path:?} holds a NUL byte")));
        }
        if matches!(path.rsplit('/').next(), Some("" | "." | "..")) {
            return Err(CoreError::not_allowed(given, format!("{path:?} names a directory")));
        }
        let mut canonical = PathBuf::from("/");
        let mut crossed = Vec::new();
        for component in path.split('/') {
            match component {
                "" | "." => {}
                ".." => {
                    crossed.push(canonical.clone());
                    canonical.pop();
                }
                name => canonical.push(name),
            }
        }
        Ok(Self { canonical, crossed })
    }
}

/// Which error a failed resolution is: a link, an escape or a component of the wrong kind is not allowed; the rest is a file that is not there.
pub fn refusal(path: &Path, error: &io::Error) -> CoreError {
    refusal_of(path, &path.display().to_string(), error)
}

fn refusal_of(path: &Path, what: &str, error: &io::Error) -> CoreError {
    let words = match error.raw_os_error() {
        Some(libc::ELOOP) => "passes a symbolic link",
        Some(libc::EXDEV) => "leaves the base directory",
        Some(libc::ENOTDIR) => "passes something that is not a directory",
        Some(libc::EAGAIN) => "is being renamed all the time",
        _ => return CoreError::region(path, format!("{what}: {}", reason(error))),
    };
    CoreError::not_allowed(path, format!("{what}: {words}"))
}

/// The operating system's words without Rust's "(os error 2)".
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_lowercase()
}

pub fn c_string(name: &OsStr) -> io::Result<CString> {
    CString::new(name.as_bytes()).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))
}
