// Search runs in a Worker, which browsers refuse to pages that are opened as files. There, run its script in a hidden
// frame with the same interface. (The theme would load a script of this name from another host.)
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      document.body.appendChild(this.frame)
      const inside = this.frame.contentWindow
      const page = inside.document
      page.open()
      page.close()
      inside.postMessage = data => {
        const event = new MessageEvent("message", { data })
        this.dispatchEvent(event)
        if (this.onmessage) this.onmessage(event)
      }
      inside.importScripts = (...urls) => Promise.all(urls.map(part => this.load(part)))
      this.ready = this.load(url)
    }

    load(url) {
      const page = this.frame.contentDocument
      return new Promise((resolve, reject) => {
        const script = page.createElement("script")
        script.src = url
        script.onload = resolve
        script.onerror = reject
        page.head.appendChild(script)
      })
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
