//! libpcap's compiler, loaded with the first filter. Nothing else in this project needs libpcap, and it only sees
//! packets that the kernel's side of a filter could not decide.
#![allow(unsafe_code, reason = "libpcap's C interface")]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::OnceLock;

use libloading::Library;

use super::FilterError;

/// `struct bpf_insn`: an instruction of classic BPF.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct Instruction {
    pub(crate) code: u16,
    /// Instructions to skip if a condition holds.
    pub(crate) jt: u8,
    /// And if it does not.
    pub(crate) jf: u8,
    pub(crate) k: u32,
}

/// `struct bpf_program`.
#[repr(C)]
struct Program {
    length: c_uint,
    instructions: *mut Instruction,
}

/// `DLT_EN10MB`.
const ETHERNET: c_int = 1;
/// `PCAP_NETMASK_UNKNOWN`: refuses `ip broadcast`, which depends on it.
const NO_MASK: u32 = u32::MAX;
/// Where it is, by Debian and by libpcap itself.
const NAMES: [&str; 3] = ["libpcap.so.0.8", "libpcap.so.1", "libpcap.so"];

/// The functions.
pub(crate) struct Pcap {
    open: unsafe extern "C" fn(c_int, c_int) -> *mut c_void,
    compile: unsafe extern "C" fn(*mut c_void, *mut Program, *const c_char, c_int, u32) -> c_int,
    free: unsafe extern "C" fn(*mut Program),
    error: unsafe extern "C" fn(*mut c_void) -> *const c_char,
    close: unsafe extern "C" fn(*mut c_void),
    run: unsafe extern "C" fn(*const Instruction, *const u8, c_uint, c_uint) -> c_uint,
    /// Keeps them where they are.
    _library: Library,
}

impl Pcap {
    /// The library, loaded once.
    pub(crate) fn load() -> Result<&'static Self, FilterError> {
        static PCAP: OnceLock<Result<Pcap, String>> = OnceLock::new();
        let loaded = PCAP.get_or_init(|| Self::open().map_err(|error| error.to_string()));
        loaded.as_ref().map_err(|reason| FilterError::Library(reason.clone()))
    }

    fn open() -> Result<Self, libloading::Error> {
        let mut last = None;
        for name in NAMES {
            // SAFETY: libpcap's initializers do nothing that this process would not allow.
            match unsafe { Library::new(name) } {
                // SAFETY: the types are those of pcap.h since libpcap 1.0, and the library stays loaded beside them.
                Ok(library) => unsafe {
                    return Ok(Self {
                        open: *library.get(b"pcap_open_dead\0")?,
                        compile: *library.get(b"pcap_compile\0")?,
                        free: *library.get(b"pcap_freecode\0")?,
                        error: *library.get(b"pcap_geterr\0")?,
                        close: *library.get(b"pcap_close\0")?,
                        run: *library.get(b"bpf_filter\0")?,
                        _library: library,
                    });
                },
                Err(error) => last = last.or(Some(error)),
            }
        }
        Err(last.unwrap_or(libloading::Error::DlOpenUnknown))
    }

    /// Compiles `text` for Ethernet, or says why not.
    pub(crate) fn compile(&self, text: &str, snaplen: u32) -> Result<Vec<Instruction>, String> {
        let text = CString::new(text).map_err(|_| "it has a zero octet".to_owned())?;
        let snaplen = c_int::try_from(snaplen).unwrap_or(c_int::MAX);
        // SAFETY: two numbers.
        let handle = NonNull::new(unsafe { (self.open)(ETHERNET, snaplen) }).ok_or("no memory")?;
        let mut program = Program { length: 0, instructions: std::ptr::null_mut() };
        // SAFETY: the handle is open, `program` is ours to be written to, and `text` ends by a zero.
        let code = unsafe { (self.compile)(handle.as_ptr(), &raw mut program, text.as_ptr(), 1, NO_MASK) };
        let result = if code == 0 && !program.instructions.is_null() {
            // SAFETY: libpcap has just written that many instructions there.
            let made = unsafe { std::slice::from_raw_parts(program.instructions, program.length as usize) };
            let made = made.to_vec();
            // SAFETY: what `compile` filled, once.
            unsafe { (self.free)(&raw mut program) };
            Ok(made)
        } else {
            // SAFETY: the handle is open, and its error's text ends by a zero.
            let reason = unsafe { CStr::from_ptr((self.error)(handle.as_ptr())) };
            Err(reason.to_string_lossy().into_owned())
        };
        // SAFETY: open until here, closed once.
        unsafe { (self.close)(handle.as_ptr()) };
        result
    }

    /// Whether a packet of `length` octets, of which `data` was captured, matches. The program is one of `compile`.
    pub(crate) fn matches(&self, program: &[Instruction], data: &[u8], length: u32) -> bool {
        let captured = c_uint::try_from(data.len()).unwrap_or(c_uint::MAX);
        // SAFETY: both pointers are valid for the call. What libpcap compiled ends by a return on every path and jumps
        // within itself, and `bpf_filter` reads no octet of the packet beyond `captured`.
        unsafe { (self.run)(program.as_ptr(), data.as_ptr(), length, captured) != 0 }
    }
}
