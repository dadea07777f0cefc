//! One shared-memory file: made with its space reserved, or opened safely, and mapped.
use crate::copy;
use crate::error::{CoreError, Result};
use crate::failpoint::{self, Point};
use crate::mapping::Mapping;
use crate::open::{self, OpenFile};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

const HUGETLBFS_MAGIC: i64 = 0x9584_58f6;

#[derive(Debug)]
pub struct Region {
    mapping: Mapping,
    file: OwnedFd,
    path: PathBuf,
    device: u64,
    inode: u64,
}

/// What a new region shall be.
#[derive(Clone, Copy, Debug)]
pub struct Creation {
    pub length: u64,
    pub mode: u32,
    /// Take the space now, so that a full file system is an error here and not a signal later.
    pub reserve: bool,
    pub hugepages: bool,
}

impl Region {
    /// Make a new file below `base` and map it for writing. A half-made file is removed again.
    pub fn create(base: &Path, relative: &str, creation: Creation) -> Result<Self> {
        let base = open::canonical_base_dir(base)?;
        let path = base.join(relative);
        let below = Path::new(relative);
        let is_plain = !relative.is_empty() && below.components().all(|part| matches!(part, Component::Normal(_)));
        let (Some(name), true) = (below.file_name(), is_plain) else {
            return Err(CoreError::not_allowed(&path, format!("{relative:?} is not a plain path below {}", base.display())));
        };
        if creation.length == 0 {
            return Err(CoreError::argument("a region needs a length above 0"));
        }
        let directory = parent_directory(&base, below, &path)?;
        let name = open::c_string(name).map_err(|error| CoreError::region(&path, open::reason(&error)))?;
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: the name is NUL-terminated.
        let descriptor = unsafe { libc::openat(directory.as_raw_fd(), name.as_ptr(), flags, creation.mode) };
        if descriptor < 0 {
            let error = io::Error::last_os_error();
            return Err(CoreError::region(&path, format!("{} cannot be made: {}", path.display(), open::reason(&error))));
        }
        // SAFETY: a new descriptor that nobody else owns.
        let file = unsafe { OwnedFd::from_raw_fd(descriptor) };
        let made = Self::fill(file, &path, creation);
        if made.is_err() {
            // SAFETY: the name is NUL-terminated; the file is the one made above, in a directory of ours.
            unsafe { libc::unlinkat(directory.as_raw_fd(), name.as_ptr(), 0) };
        }
        made
    }

    fn fill(file: OwnedFd, path: &Path, creation: Creation) -> Result<Self> {
        let failed = |what: &str| {
            let error = io::Error::last_os_error();
            CoreError::region(path, format!("{}: {what}: {}", path.display(), open::reason(&error)))
        };
        failpoint::pass(Point::RegionAfterCreate)?;
        // the umask took bits away
        // SAFETY: an open descriptor.
        if unsafe { libc::fchmod(file.as_raw_fd(), creation.mode) } != 0 {
            return Err(failed("its permissions cannot be set"));
        }
        let page = huge_page_bytes(&file);
        if creation.hugepages && page.is_none() {
            return Err(not_hugepages(path));
        }
        let length = page.map_or(creation.length, |page| creation.length.next_multiple_of(page));
        // SAFETY: an open descriptor of ours.
        if unsafe { libc::ftruncate(file.as_raw_fd(), length as libc::off_t) } != 0 {
            return Err(failed("it cannot be made that long"));
        }
        if creation.reserve {
            reserve(&file, path, length)?;
        }
        failpoint::pass(Point::RegionAfterReserve)?;
        let status = open::status(&file).map_err(|error| CoreError::region(path, open::reason(&error)))?;
        let mapping = Mapping::new(&file, length as usize, true).map_err(|error| unmapped(path, length, &error))?;
        failpoint::pass(Point::RegionAfterMap)?;
        Ok(Self { mapping, file, path: path.to_owned(), device: status.st_dev, inode: status.st_ino })
    }

    /// Map an existing file after every check of wire 15.21a.5. `allowed` are canonical directories.
    pub fn open(path: &str, allowed: &[PathBuf], writable: bool, minimum_length: u64, require_hugepages: bool) -> Result<Self> {
        let OpenFile { descriptor, path, length, device, inode } = open::open_file(path, allowed, writable)?;
        if length < minimum_length.max(1) {
            return Err(CoreError::region(&path, format!("{} has {length} bytes, and the layout needs {minimum_length}", path.display())));
        }
        if require_hugepages && huge_page_bytes(&descriptor).is_none() {
            return Err(not_hugepages(&path));
        }
        let mapping = Mapping::new(&descriptor, length as usize, writable).map_err(|error| unmapped(&path, length, &error))?;
        Ok(Self { mapping, file: descriptor, path, device, inode })
    }

    pub fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn identity(&self) -> (u64, u64) {
        (self.device, self.inode)
    }

    /// A copy of bytes that may change meanwhile.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        let pointer = self.mapping.pointer(offset, into.len()).ok_or_else(|| self.outside(offset, into.len()))?;
        // SAFETY: the source was just checked, the destination is a slice of that length elsewhere.
        unsafe { copy::copy_out(pointer, into.as_mut_ptr(), into.len()) };
        Ok(())
    }

    pub fn write(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.ensure_writable()?;
        let pointer = self.mapping.pointer(offset, from.len()).ok_or_else(|| self.outside(offset, from.len()))?;
        // SAFETY: the destination was just checked and is writable, the source is a slice of that length elsewhere.
        unsafe { copy::copy_in(from.as_ptr(), pointer, from.len()) };
        Ok(())
    }

    pub fn word(&self, offset: usize) -> Result<&crate::sync::AtomicU64> {
        self.mapping
            .words(offset, 1)
            .map(|words| &words[0])
            .ok_or_else(|| CoreError::argument(format!("no aligned word at {offset} of {}", self.path.display())))
    }

    pub fn ensure_writable(&self) -> Result<()> {
        if self.mapping.is_writable() {
            return Ok(());
        }
        Err(CoreError::argument(format!("{} is mapped for reading only", self.path.display())))
    }

    pub fn reserve(&self) -> Result<()> {
        self.ensure_writable()?;
        reserve(&self.file, &self.path, self.mapping.length() as u64)
    }

    /// Touch every page. Where the kernel cannot bring them all (a full file system, a file cut short) this is an error and no signal.
    pub fn prefault(&self) -> Result<()> {
        self.mapping.prefault().map_err(|error| match error.raw_os_error() {
            // what the kernel says in place of SIGBUS
            Some(libc::EFAULT | libc::ENOMEM | libc::ENOSPC) => no_space(&self.file, &self.path, self.mapping.length() as u64),
            _ => CoreError::region(&self.path, format!("{}: its pages cannot be touched: {}", self.path.display(), open::reason(&error))),
        })
    }

    pub fn lock(&self) -> Result<()> {
        self.mapping.lock().map_err(|error| {
            CoreError::region_with_hint(
                &self.path,
                format!("{} bytes of {} cannot be locked in memory: {}", self.mapping.length(), self.path.display(), open::reason(&error)),
                "raise RLIMIT_MEMLOCK (ulimit -l), or set policies.mlock_shm = false",
            )
        })
    }

    fn outside(&self, offset: usize, length: usize) -> CoreError {
        CoreError::argument(format!("{length} bytes at {offset} are not inside {} of {} bytes", self.path.display(), self.mapping.length()))
    }
}

fn parent_directory(base: &Path, below: &Path, path: &Path) -> Result<OwnedFd> {
    let method = open::method();
    let directory = open::open_base(method, base)?;
    match below.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => {
            let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
            open::resolve(method, &directory, parent, flags).map_err(|error| open::refusal(path, &error))
        }
        _ => Ok(directory),
    }
}

fn reserve(file: &OwnedFd, path: &Path, length: u64) -> Result<()> {
    // SAFETY: an open descriptor; the call returns its error instead of setting errno.
    let code = without_signals(|| unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length as libc::off_t) });
    match code {
        0 => Ok(()),
        libc::ENOSPC | libc::EDQUOT | libc::EFBIG | libc::ENOMEM => Err(no_space(file, path, length)),
        code => {
            let error = io::Error::from_raw_os_error(code);
            Err(CoreError::region(path, format!("{}: its space cannot be reserved: {}", path.display(), open::reason(&error))))
        }
    }
}

/// tmpfs gives up a reservation, and gives back what it has, for any signal: with a timer running, a large one would never succeed.
fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: signal sets are plain memory, filled in before they are used; the mask is this thread's own and is put back.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut before);
        let result = work();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        result
    }
}

fn no_space(file: &OwnedFd, path: &Path, length: u64) -> CoreError {
    let have_bytes = available_bytes(file);
    CoreError::StorageSpace {
        message: format!("no space for {}: {length} bytes are needed and {have_bytes} are free", path.display()),
        path: path.to_owned(),
        need_bytes: length,
        have_bytes,
        hint: "use fewer slots or a smaller stride, remove old streams, or enlarge the file system (mount -o remount,size=…)".into(),
    }
}

fn available_bytes(file: &OwnedFd) -> u64 {
    // SAFETY: statvfs is plain numbers; zero is a valid value of each.
    let mut status: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor and a struct to write to.
    if unsafe { libc::fstatvfs(file.as_raw_fd(), &mut status) } != 0 {
        return 0;
    }
    status.f_bavail as u64 * status.f_frsize as u64
}

/// The page size of a hugetlbfs, None for every other file system.
fn huge_page_bytes(file: &OwnedFd) -> Option<u64> {
    // SAFETY: statfs is plain numbers; zero is a valid value of each.
    let mut status: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor and a struct to write to.
    let code = unsafe { libc::fstatfs(file.as_raw_fd(), &mut status) };
    (code == 0 && status.f_type as i64 == HUGETLBFS_MAGIC).then_some(status.f_bsize as u64)
}

fn not_hugepages(path: &Path) -> CoreError {
    CoreError::region_with_hint(
        path,
        format!("{} must be on hugepages and is not on a hugetlbfs", path.display()),
        "mount -t hugetlbfs none <directory>, or set shm.require_hugepages = false",
    )
}

fn unmapped(path: &Path, length: u64, error: &io::Error) -> CoreError {
    CoreError::region(path, format!("{length} bytes of {} cannot be mapped: {}", path.display(), open::reason(error)))
}
